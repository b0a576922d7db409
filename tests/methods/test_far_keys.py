"""Maps of a profile read keys that stand behind its longest prompt as if they stood at its end."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.errors import InvalidInput, ProfileMismatch, UnsupportedModel
from foveate.methods.expected_attention import ExpectedAttention
from foveate.methods.kvzap import SurrogateScore
from foveate.methods.recommended.head_levels import LEVELS
from foveate.methods.recommended.predicted import FACTS, ForetoldReconstruction
from foveate.methods.triattention import DistancePreference
from foveate.profiles import far_keys
from foveate.profiles.tensor_profile import load_tensors
from tests import census, zoo
from tests.conformance.compare import check_generate
from tests.profiles import saved_tensors, tensors_of
from tests.stages.layers import random_layer

HEADS, SIZE, LONGEST = 2, 6, 20
TURNS = {
    "frequencies": torch.tensor([0.7, 0.02]),  # of 6 channels, 4 are turned
    "pairs": torch.tensor([[0, 1], [3, 4]]),
}
SCORES = {"recommended": ForetoldReconstruction, "kvzap": SurrogateScore}


def drawn(method):
    """One layer's maps."""
    torch.manual_seed(7)
    if method == "kvzap":
        return tensors_of(method, HEADS, SIZE)
    of_pairs = {name: torch.randn(HEADS, SIZE) for name in ("of_key", "of_value")}
    levels = torch.randn(HEADS, LEVELS).sort(descending=True).values
    facts = torch.randn(HEADS, FACTS)
    return {**of_pairs, "of_facts": facts, "offset": torch.randn(HEADS), "levels": levels}


def made(folder, method, held, longest=LONGEST):
    path = str(saved_tensors(folder, method, [held]))
    replace(load_tensors(path, method), longest=longest).save(path)
    return SCORES[method](profile=path)


def literally_nearer(layer):
    """Each key of a position from ``LONGEST`` on, as the complex numbers of its pairs of channels
    times those of the way back to the last position before.
    """
    k = layer.k.double().clone()
    for row, head, slot in torch.cartesian_prod(*map(torch.arange, k.shape[:3])).tolist():
        far = int(layer.pos[row, head, slot]) - (LONGEST - 1)
        if far > 0:
            for frequency, a, b in zip(TURNS["frequencies"].tolist(), (0, 1), (3, 4), strict=True):
                key = torch.complex(*k[row, head, slot, [a, b]]) * torch.exp(
                    torch.tensor(-1j * frequency * far, dtype=torch.complex128)
                )
                k[row, head, slot, [a, b]] = torch.stack([key.real, key.imag])
    return replace(layer, k=k.float())


@pytest.mark.parametrize("method", SCORES)
def test_keys_behind_the_longest_prompt_are_turned_back_to_its_end(tmp_path, monkeypatch, method):
    monkeypatch.setattr(far_keys, "PIECE", 5)  # of 13 tokens
    score = made(tmp_path, method, {**drawn(method), **TURNS})
    layer = random_layer((33, 26), h=HEADS, d=SIZE, seed=2)
    (tmp_path / "plain").mkdir()
    plain = made(tmp_path / "plain", method, drawn(method))
    real = layer.valid
    expected = plain(literally_nearer(layer)).values
    assert_close(score(layer).values[real], expected[real], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(score(layer).values[real], plain(layer).values[real], atol=0.1)
    short = random_layer((LONGEST, 12), h=HEADS, d=SIZE, seed=2)
    assert torch.equal(score(short).values, plain(short).values)


@pytest.mark.parametrize("method", SCORES)
def test_prompts_far_longer_than_a_profiles_are_said_once(tmp_path, caplog, method):
    score = made(tmp_path, method, drawn(method))
    said = []
    for tokens in (2 * LONGEST, 2 * LONGEST + 1, 2 * LONGEST + 2):
        score(random_layer((tokens,), h=HEADS, d=SIZE, seed=3))
        said.append(len(caplog.messages))
    assert said == [0, 1, 1]
    assert f"prompts of up to {LONGEST} tokens" in caplog.messages[0]


@pytest.mark.parametrize("method", SCORES)
@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_5_vl"])
def test_a_profile_says_how_keys_are_turned_where_positions_count_tokens(tmp_path, method, family):
    model = zoo.build(family)
    profile = foveate.calibrate(model, method, [zoo.prompt(family, lengths=(23,), seed=1)])
    if family == "qwen2_5_vl":  # M-RoPE
        assert all("pairs" not in held for held in profile.by_layer)
    else:
        (angles,) = (t for name, t in model.named_buffers() if name.endswith(".inv_freq"))
        half = torch.arange(len(angles))
        for held in profile.by_layer:
            assert torch.equal(held["frequencies"], angles)
            assert torch.equal(held["pairs"], torch.stack([half, half + len(half)]))
    path = profile.save(tmp_path / "p.safetensors")
    policy = foveate.policy(f"{method}:budget=40%,profile={path}")
    check_generate(model, policy, zoo.prompt(family, lengths=(40,), seed=3))


def test_a_model_that_reads_no_text_from_other_positions_has_a_profile_that_does_not_say(caplog):
    caplog.set_level("INFO", logger="foveate")
    specimen = census.build("minimax_m3_vl")  # whose blocks are known by their positions
    given = [specimen.prompt((40,))]
    profile = foveate.calibrate(specimen.model, "kvzap", given)
    assert all("pairs" not in held for held in profile.by_layer)
    assert "will not have the rotation of keys" in caplog.text
    with pytest.raises(UnsupportedModel, match="Use this method without a profile"):
        foveate.calibrate(specimen.model, "triattention", given)


def test_a_profile_of_other_channels_is_refused(tmp_path):
    layer = random_layer((33,), h=HEADS, d=SIZE)
    wrong = {**TURNS, "pairs": TURNS["pairs"] + 3}
    with pytest.raises(ProfileMismatch, match="turns other channels than the 6 of the keys"):
        made(tmp_path, "kvzap", {**drawn("kvzap"), **wrong})(layer)
    for method in SCORES:
        with pytest.raises(ProfileMismatch, match="1 layers, and 2 layers are to be compressed"):
            made(tmp_path, method, drawn(method))(replace(layer, depth=2, ordinal=1))
    with pytest.raises(InvalidInput, match=r"not a profile of kvzap: layer 0 .*'more'"):
        made(tmp_path, "kvzap", {**drawn("kvzap"), "more": torch.ones(1)})
    held = {**tensors_of("triattention", HEADS, SIZE, 2 * HEADS), "pairs": torch.full((2, 3), -1)}
    path = str(saved_tensors(tmp_path, "triattention", [held]))
    with pytest.raises(ProfileMismatch, match="calibrate triattention"):
        DistancePreference(profile=path)(layer)
    hq = 2 * HEADS
    held = {"mean": torch.ones(hq, SIZE), "covariance": torch.ones(hq, SIZE, SIZE), **wrong}
    path = str(saved_tensors(tmp_path, "expected_attention", [held]))
    with pytest.raises(ProfileMismatch, match="calibrate expected_attention"):
        ExpectedAttention(profile=path)(layer)
