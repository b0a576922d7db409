"""TriAttention: scores are those of the authors' code, and what it goes by is what is measured."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.cache.layer import Layer
from foveate.cache.slots import Slots
from foveate.errors import InvalidInput
from foveate.methods.triattention import Centres, DistancePreference
from foveate.ops.rotation import halves, turned
from tests import zoo
from tests.golden.vectors import load
from tests.profiles import saved_tensors


def profile(folder, golden):
    """The authors' statistics of four query heads, as a profile of one layer."""
    omega = golden["omega"]
    pairs = halves(omega)
    tensors = {
        "centre": golden["centre"],
        "length": golden["length"],
        "frequencies": omega,
        "pairs": torch.stack([pairs.first, pairs.second]),
    }
    return str(saved_tensors(folder, "triattention", [tensors]))


def layer_of(golden, seen):
    """Keys of two KV heads as a model holds them, behind which ``seen`` tokens have come."""
    held, q = halves(golden["omega"]), golden["q"][None, :, :1]
    k = turned(golden["k"], golden["positions"], held).float().expand(1, 2, -1, -1)
    pos = golden["positions"].expand(1, 2, -1)
    return Layer(q=q, k=k, v=k, slots=Slots(pos=pos, q_pos=torch.tensor([[seen - 1]])), scale=1.0)


def test_scores_are_those_of_the_authors_code(tmp_path):
    golden, arguments = load("triattention")
    score = DistancePreference(profile=profile(tmp_path, golden))
    layer, theirs = layer_of(golden, arguments["round_start"]), golden["scores"]
    # theirs are turned in single precision, by up to 65,593 radians
    assert_close(score.expected(layer).view(4, -1), theirs, atol=3e-3, rtol=1e-4)
    z = (theirs - theirs.mean(-1, keepdim=True)) / theirs.std(-1, unbiased=False, keepdim=True)
    assert_close(score(layer).values[0], z.view(2, 2, -1).amax(1), atol=2e-3, rtol=1e-4)


def test_centres_and_lengths_are_those_of_queries_that_are_turned_back():
    """In two passes, the second behind the first, with a row of padding in it."""
    golden, _ = load("triattention")
    held, drawn, gathering = halves(golden["omega"]), golden["q"], Centres()
    sums = {}
    for some in (slice(0, 80), slice(80, 200)):
        places = torch.arange(200)[some]
        ours = turned(drawn[:, some], places, held).float()[None]
        q = torch.cat([ours, torch.full_like(ours, 9.0)])
        q_pos = torch.stack([places, torch.full_like(places, -1)])
        slots = Slots(pos=q_pos[:, None], q_pos=q_pos)
        layer = Layer(q=q, k=q[:, :1], v=q[:, :1], slots=slots, scale=1.0)
        for name, x in gathering.gather(layer, held).items():
            sums[name] = sums.get(name, 0) + x
    found = gathering.finish(sums, held)
    assert_close(found["centre"], golden["centre"], atol=1e-5, rtol=1e-4)
    assert_close(found["length"], golden["length"], atol=1e-5, rtol=1e-4)


def test_a_model_is_measured_and_compressed_by_it(tmp_path):
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    path = foveate.calibrate(model, "triattention", [inputs]).save(tmp_path / "tri.safetensors")
    policy = foveate.policy("triattention:budget=12,recent=4,every=3", profile=str(path))
    with foveate.compress(model, policy) as session:
        session.prefill(**inputs)
    assert {int(n) for layer in session.stats.layers for n in layer.kept.flatten()} == {12}


def test_images_are_refused_while_it_is_measured():
    with pytest.raises(InvalidInput, match="Give prompts without images"):
        foveate.calibrate(zoo.build("llava"), "triattention", [zoo.prompt("llava")])
