"""Foveate's recipe: maps fitted to second readings, and what they keep."""

import hashlib
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.compression.pipeline import score
from foveate.compression.reading import PromptReading
from foveate.errors import InvalidInput, InvalidParameter, ProfileMismatch
from foveate.hf.model.weights import weights_digest
from foveate.methods.recommended import VALUE, suggest_profile_once
from foveate.methods.recommended.fitting import RIDGE, SecondReading
from foveate.methods.recommended.head_levels import (
    LEVELS,
    HeadLevels,
    _counts,
    _layer_counts,
    levels,
)
from foveate.methods.recommended.predicted import FACTS, LEAST, ForetoldReconstruction
from foveate.policies.gathering import Asked
from foveate.profiles.tensor_profile import TensorProfile, load_tensors
from foveate.stages.score import KeyDifference
from tests import zoo
from tests.conformance.compare import check_generate
from tests.core.users import unchecked
from tests.profiles import saved_tensors
from tests.stages.layers import random_layer

ASKED = [Asked(((zoo.TEXT_FROM + 3, zoo.TEXT_FROM + 9), (zoo.TEXT_FROM + 5,)), after=30)]
PROMPTS = [zoo.prompt("llama", seed=1), zoo.prompt("llama", lengths=(23, 33), seed=2)]


def literal_facts(k, v):
    """Of one head's keys and values, pair by pair."""
    unit = [key / key.norm() for key in k]
    mean = sum(unit) / len(unit)
    for key, value, direction in zip(k, v, unit, strict=True):
        likeness = float(direction @ mean / mean.norm())
        norm, of_value = float(key.norm()), float(value.norm())
        yield [norm, norm**2, of_value, torch.tensor(of_value).log().item(), likeness]


def literal_features(k, v):
    facts = torch.tensor(list(literal_facts(k, v)), dtype=torch.float64)
    return torch.cat([facts, k, v], dim=1)


def test_the_maps_are_a_ridge_regression_on_standardised_features():
    layers = []
    for seed, lengths in ((1, (40, 31)), (2, (37,))):
        layer = random_layer(lengths, d=4, seed=seed)
        paid = torch.rand(layer.pos.shape, generator=torch.Generator().manual_seed(seed))
        layers.append((layer, paid))
    gathering = SecondReading()
    sums = [
        gathering.gather(_with_state(layer, reconstruction=paid), None) for layer, paid in layers
    ]
    added = {name: sums[0][name] + sums[1][name] for name in sums[0]}
    found = gathering.finish(added, None)
    for head in range(2):
        features, told = [], []
        for layer, paid in layers:
            for row in range(len(layer.pos)):
                real = layer.valid[row, head]
                k, v = (x[row, head, real].double() for x in (layer.k, layer.v))
                features.append(literal_features(k, v))
                told.append(paid[row, head, real].double().clamp_min(LEAST).log())
        x, y = torch.cat(features), torch.cat(told)
        mean, scale = x.mean(0), x.std(0, unbiased=False)
        z = (x - mean) / scale
        eye = RIDGE * len(x) * torch.eye(z.shape[1], dtype=torch.float64)
        w = torch.linalg.solve(z.T @ z + eye, z.T @ (y - y.mean())) / scale
        ours = torch.cat([found[n][head] for n in ("of_facts", "of_key", "of_value")]).double()
        assert_close(ours, w, rtol=1e-3, atol=1e-4)
        assert_close(found["offset"][head].double(), y.mean() - mean @ w, rtol=1e-3, atol=1e-3)


def test_levels_are_what_stands_in_the_middle_of_each_share():
    values = torch.randn(2, 3 * LEVELS, generator=torch.Generator().manual_seed(1))
    ranked = values.sort(descending=True).values
    assert_close(levels(values), ranked[:, 1::3])  # of three pairs the second
    assert_close(levels(values[:, :1]), values[:, :1].expand(2, LEVELS))


def test_heads_keep_their_average_share_of_the_best(tmp_path):
    held = weights(layers=2)
    path = str(saved_tensors(tmp_path, "recommended", held))
    rule = HeadLevels(amount="20%", profile=path, of="recommended").by_head(2, 2)
    table = torch.cat([one["levels"] for one in held])
    for tokens in (LEVELS // 4, LEVELS // 10):  # a share is a pair here
        lowest = table.flatten().sort(descending=True).values[4 * tokens - 1]
        assert rule(tokens, 0, LEVELS) == tuple((table >= lowest).sum(-1).tolist())
    counts = rule(50, 45, 1000)
    assert sum(counts) == 4 * 50
    assert min(counts) == 45  # what is protected in every head
    with pytest.raises(ProfileMismatch, match="2 KV heads in layer 0, the model 3"):
        HeadLevels(amount="20%", profile=path, of="recommended").by_head(2, 3)


def _with_state(layer, **state):
    return replace(layer, state=state)


def weights(heads=2, d=4, layers=1, seed=5):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"of_key": (heads, d), "of_value": (heads, d), "of_facts": (heads, FACTS)}
    return [
        {
            **{n: torch.randn(s, generator=generator) for n, s in shapes.items()},
            "offset": torch.randn(heads, generator=generator),
            "levels": torch.randn(heads, LEVELS, generator=generator).sort(descending=True).values,
        }
        for _ in range(layers)
    ]


def test_a_score_is_its_heads_map_of_the_pair_whatever_the_padding(tmp_path):
    (held,) = weights()
    path = str(saved_tensors(tmp_path, "recommended", [held]))
    layer = random_layer((20, 13), d=4, seed=3)
    values = ForetoldReconstruction(profile=path)(layer).values
    for row in range(2):
        for head in range(2):
            real = layer.valid[row, head]
            k, v = (x[row, head, real].double() for x in (layer.k, layer.v))
            joined = torch.cat([held[n][head] for n in ("of_facts", "of_key", "of_value")])
            expected = literal_features(k, v) @ joined.double() + held["offset"][head].double()
            assert_close(values[row, head, real].double(), expected, rtol=1e-4, atol=1e-4)


def test_a_profile_is_measured_on_a_model_and_used_at_every_budget(tmp_path):
    model = zoo.build("llama")
    profile = foveate.calibrate(model, "recommended", PROMPTS, progress=tmp_path / "part")
    path = str(profile.save(tmp_path / "own.safetensors"))
    assert not (tmp_path / "part").exists()
    assert (profile.method, profile.samples) == ("recommended", 2)
    for budget in ("20%", "30%"):  # the first layer, which adds to the least, keeps most
        for lengths in ((40,), (23, 31, 40)):
            for heads in ("by_prompt", "by_profile", "by_layer"):
                check_generate(
                    model,
                    foveate.recommended(budget=budget, profile=path, heads=heads),
                    zoo.prompt("llama", lengths=lengths),
                )


def test_a_layer_keeps_the_mean_of_its_heads(tmp_path):
    profile = TensorProfile(
        method="recommended",
        model="a",
        layers=2,
        samples=1,
        budget="",
        by_layer=[
            {"levels": torch.tensor(heads)[:, None].expand(2, LEVELS)}
            for heads in ((5.0, 4.0), (9.0, 1.0))
        ],
    )
    # the best half of all levels: a head of each layer as a whole
    assert _counts(profile, 50, 2, 100) == (98, 2, 98, 2)
    assert _layer_counts(profile, 50, 2, 100) == (50, 50)
    # a quarter: one head of the second layer; the first keeps what is protected
    assert _layer_counts(profile, 25, 2, 100) == (2, 48)


def ends_at_once(model):
    model.generation_config.eos_token_id = list(range(model.config.vocab_size))


def hides_projections(model):
    for layer in model.model.layers:
        layer.self_attn.o_proj = torch.nn.Sequential(layer.self_attn.o_proj)


def has_weights_for_inference(model):
    """Which PyTorch saves for no backward pass."""
    with torch.inference_mode():
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    new = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
                    module._parameters[name] = new


REACHED = {
    "answers": (lambda model: None, ASKED),
    "no questions": (lambda model: None, None),
    "no answers": (ends_at_once, ASKED),
    "no gradients": (has_weights_for_inference, ASKED),
    "no projections": (hides_projections, ASKED),
}


@pytest.mark.parametrize("case", REACHED)
def test_the_target_is_the_best_that_can_be_had(case, caplog):
    change, questions = REACHED[case]
    model = zoo.fresh("llama")
    change(model)
    profile = foveate.calibrate(model, "recommended", PROMPTS[:1], questions=questions)
    expected = {"answers": "answers", "no projections": "attention"}.get(case, "damage")
    assert profile.target == expected
    said = "answered no question" if case == "no answers" else "is not available"
    assert (said in caplog.text) == (case not in ("answers", "no questions"))


def test_a_prompt_without_questions_may_come_first():
    model, prompts = zoo.build("llama"), [zoo.prompt("llama", seed=3), PROMPTS[0]]
    profile = foveate.calibrate(model, "recommended", prompts, questions=[Asked(), *ASKED])
    turned = foveate.calibrate(model, "recommended", prompts[::-1], questions=[*ASKED, Asked()])
    assert profile.target == turned.target == "answers"
    for mine, theirs in zip(profile.by_layer, turned.by_layer, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_questions_go_with_prompts_of_a_method_that_asks_them():
    model = zoo.build("llama")
    said = r"one foveate\.policies\.gathering\.Asked for each"
    for questions in ([], ASKED * 2, ["What?"]):
        with pytest.raises(InvalidInput, match=said), unchecked():
            foveate.calibrate(model, "recommended", PROMPTS[:1], questions=questions)
    late = [ASKED[0]._replace(after=41)]
    with pytest.raises(InvalidInput, match="first 41 tokens of one prompt, and 1 prompt"):
        foveate.calibrate(model, "recommended", PROMPTS[:1], questions=late)
    with pytest.raises(InvalidInput, match=r"2 prompt\(s\)"):
        foveate.calibrate(model, "recommended", PROMPTS[1:], questions=ASKED)
    for name in ("q_filters", "prefixkv:budget=20%"):
        with pytest.raises(InvalidParameter, match="needs no questions"):
            foveate.calibrate(model, name, PROMPTS[:1], questions=ASKED)


def test_a_profile_is_of_the_weights_that_it_was_measured_on(tmp_path):
    model = zoo.fresh("llama")
    path = foveate.calibrate(model, "recommended", PROMPTS[:1]).save(tmp_path / "p.safetensors")
    policy = foveate.recommended(budget="50%", profile=str(path))
    digest = weights_digest(model)
    assert weights_digest(zoo.fresh("llama").to(torch.bfloat16)) == digest
    assert weights_digest(zoo.fresh("llama").half()) == ""
    for other in (model, zoo.fresh("llama").half()):
        foveate.compress(other, policy)  # of the same name, and no other weights that are known
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = 9.0
    with pytest.raises(ProfileMismatch, match=r"other weights .* calibrate recommended"):
        foveate.compress(model, policy)
    assert weights_digest(model) != digest
    model.load_state_dict(zoo.fresh("llama").state_dict())
    foveate.compress(model, policy)
    model.model.norm.weight.data[0] = 9.0  # which leaves the tensor's version as it was
    assert weights_digest(model) != digest


def test_a_digest_is_of_the_largest_first_number_of_every_parameter():
    numbers = torch.Generator().manual_seed(0)
    shapes, kinds = ((1,), (9, 7), (64,), (70, 3), (2,), (0,)), (torch.float32, torch.bfloat16)
    model = torch.nn.ParameterList(
        torch.randn(shape, generator=numbers).to(kinds[place % 2])
        for place, shape in enumerate(shapes)
    )
    first = [one.detach().flatten()[:64] for one in model if one.numel()]
    largest = torch.stack([one.to(torch.bfloat16).abs().max() for one in first])
    raw = largest.view(torch.int16).numpy().tobytes()
    assert weights_digest(model) == hashlib.sha256(raw).hexdigest()[:16]


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_images_are_read_again_too(tmp_path, family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(40,))
    profile = foveate.calibrate(model, "recommended", [inputs], questions=ASKED)
    assert profile.target == "answers"
    path = profile.save(tmp_path / "p.safetensors")
    check_generate(model, foveate.recommended(budget="40%", profile=str(path)), inputs)


def test_without_a_profile_it_says_once_what_it_does_instead(caplog):
    suggest_profile_once.cache_clear()
    caplog.set_level("INFO", logger="foveate")
    policy = foveate.recommended(budget="30%")
    foveate.policy("recommended:budget=20%")
    (said,) = caplog.messages
    assert caplog.records[0].levelname == "INFO"
    assert "foveate calibrate recommended" in said
    assert policy.score == KeyDifference(value=VALUE)
    assert (policy.select.sinks, policy.select.recent) == (1, 0.25)
    layer = random_layer((20, 13), d=4, seed=3)
    values = policy.score(layer).values
    for row in range(2):
        for head in range(2):
            real = layer.valid[row, head]
            k, v = (x[row, head, real].double() for x in (layer.k, layer.v))
            facts = torch.tensor(list(literal_facts(k, v)), dtype=torch.float64)
            expected = VALUE * facts[:, 3] - facts[:, 4]
            assert_close(values[row, head, real].double(), expected, rtol=1e-4, atol=1e-4)


def test_what_it_was_not_made_for_is_refused(tmp_path):
    path = saved_tensors(tmp_path, "recommended", weights(layers=2))
    policy = foveate.recommended(budget="50%", profile=str(path))
    with pytest.raises(ProfileMismatch, match="tiny"):
        foveate.compress(zoo.build("llama"), policy)
    layer = random_layer((20,), h=3, d=4)
    with pytest.raises(ProfileMismatch, match="2 layers, and 1 layers are to be compressed"):
        _scored(policy, layer)
    one = foveate.recommended(
        budget="50%", profile=str(saved_tensors(tmp_path, "recommended", weights()))
    )
    with pytest.raises(ProfileMismatch, match=r"of shape \(2, 4\) .* need \(3, 4\)"):
        _scored(one, layer)
    with pytest.raises(InvalidParameter, match="profile=FILE"):
        foveate.recommended(budget="50%", heads="by_layer")
    older = replace(load_tensors(str(path), "recommended"), target="").save(tmp_path / "older")
    with pytest.raises(InvalidInput, match=r"another version.* calibrate recommended"):
        load_tensors(str(older), "recommended")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InvalidInput, match="calibrate recommended"):
        load_tensors(str(path), "recommended")


def _scored(policy, layer):
    reading = PromptReading(policy, layer.depth)
    return reading.completed(layer) or score(policy, layer)
