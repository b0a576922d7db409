"""ThinK against a slow transcription: which channels go, and that their bytes are saved."""

import pytest
import torch

import foveate
from foveate.cache.pairs import NarrowPairs
from foveate.errors import InvalidParameter
from foveate.hf.model.internals import CACHE
from foveate.stages.score import KeyNorm
from tests import zoo
from tests.conformance.compare import GREEDY, difference
from tests.methods.visual import Visual, sets, visual

WINDOW, BUDGET = 4, 14
PROMPTS = {
    "alone": {"lengths": [40]},
    "left-padded, grouped": {"lengths": [37, 24, 30], "g": 2},
    "fits beside": {"lengths": [33, 12], "g": 3},
}


def dropped(q, k, places, count):
    """Channels of one head by |Q_i| |K_i|: its query heads' last queries, its kept keys."""
    d = k.shape[1]
    worth = []
    for i in range(d):
        energy = sum(float(x) ** 2 for head in q for x in head[-WINDOW:, i])
        size = sum(float(k[place, i]) ** 2 for place in places)
        worth.append(energy**0.5 * size**0.5)
    return sorted(range(d), key=lambda i: (worth[i], i))[:count]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("prune", "count"), [(0.4, 3), (0.0, 0), (0.75, 6)])
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_the_channels_that_go_are_those_of_the_transcription(prompt, prune, count, dtype):
    given = visual(**prompt)
    given = given._replace(layers=[tuple(x.to(dtype) for x in qkv) for qkv in given.layers])
    policy = foveate.think(budget=BUDGET, window=WINDOW, prune=prune)
    (kept,) = given.keeps(policy)
    (plain,) = given.keeps(foveate.snapkv(budget=BUDGET, window=WINDOW, kernel=7, pool="max"))
    assert torch.equal(kept.mask, plain.mask)
    for row, length in enumerate(given.lengths):
        q, k, v = given.alone(0, row)
        group = q.shape[0] // k.shape[0]
        for head, places in enumerate(sets(kept, row, given.pads[row])):
            expected = k[head].clone()
            mine = q[head * group : (head + 1) * group]
            for i in dropped(mine, k[head], places, count):
                expected[: length - WINDOW, i] = 0
            assert torch.equal(kept.keys(row, head), expected[places])
            assert torch.equal(kept.values(row, head), v[head, places])


def test_what_stands_at_padding_does_not_matter():
    given, policy = visual([30, 20], g=2), foveate.think(budget=12, window=WINDOW)
    (kept,) = given.keeps(policy)
    padding = given.mask[:, None, :, None] == 0
    for number in (float("nan"), float("inf")):
        layers = [tuple(x.masked_fill(padding, number) for x in qkv) for qkv in given.layers]
        (found,) = Visual(layers, given.images).keeps(policy)
        assert torch.equal(found.mask, kept.mask)
        assert torch.equal(found.k[found.mask], kept.k[kept.mask])


@pytest.mark.parametrize("spec", ["think", "adakv+think"], ids=["dense", "ragged"])
def test_keys_take_fewer_bytes_and_are_read_back_from_a_file(spec, tmp_path):
    model, context = zoo.build("llama"), zoo.prompt("llama", lengths=(31, 40))
    question = zoo.extend("llama", context, new_text=5, seed=1).cached
    spec = f"{spec}:budget=20,window={WINDOW}"
    held = {}
    for prune in (0.5, 0.0):
        with foveate.compress(model, foveate.policy(spec, prune=prune)) as session:
            cache = session.prefill(**context)
            held[prune] = session.bytes_held
            assert isinstance(cache.layers[0].pairs, NarrowPairs) == (prune > 0)
            path = session.save(tmp_path / f"{prune}.safetensors")
            expected = model.generate(**question, **{CACHE: session.fork(cache)}, **GREEDY)
            answer = model.generate(**question, **{CACHE: session.load(path)}, **GREEDY)
            assert difference(answer, expected) == 0
    layers, rows, heads, channels = len(cache.layers), 2, 2, 16
    pairs = layers * rows * heads * (20 - WINDOW)
    saved = pairs * channels // 2 * 4
    noted = (
        layers * rows * heads * channels // 2 * 2 + 400 * layers
    )  # which channels; where heads start
    assert 0 < saved - (held[0.0] - held[0.5]) <= noted


def test_it_needs_a_score_that_tells_of_queries():
    policy = foveate.think(budget=BUDGET, window=WINDOW).but(score=KeyNorm())
    with pytest.raises(InvalidParameter, match="query_energy"):
        visual([40]).keeps(policy)
