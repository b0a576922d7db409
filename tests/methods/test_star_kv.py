"""STaR-KV beyond its golden vectors: rows, passes and evicted tokens; what it adds to attention."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import foveate
from foveate.compression.tensors import layers_of
from foveate.methods.star_kv import BINS, LEVELS, ages, mutual_information
from foveate.stages import WindowAttention
from tests.core.prompts import prompt


def scored(given, rows=slice(None), **parameters):
    """The scores of the first layer, after its norms were noted."""
    hidden = torch.randn(2, 60, 6, generator=torch.Generator().manual_seed(1))
    q, k, v = (t[rows] for t in given.layers[0])
    mask, vision = given.mask[rows], given.vision[rows]
    (layer,) = layers_of([(q, k, v)], vision, mask, hidden_states=[hidden[rows]])
    policy = foveate.star_kv(budget=20, window=5, **parameters)
    return policy.score(replace(layer, state=policy.score.observe(layer))).values


def test_padded_rows_are_scored_as_alone():
    given = prompt([60, 37], h=2, g=2, d=8)
    both = scored(given)
    for row in range(2):
        alone = scored(given, slice(row, row + 1))
        assert_close(both[row, :, given.pads[row] :], alone[0, :, given.pads[row] :])


def test_without_its_parts_it_is_the_mean_of_snapkv():
    given = prompt([60, 37], h=2, g=2, d=8)
    plain = scored(given, alpha=0.0, prior=0.0, discount=0.0, coldest=1.0, hottest=1.0)
    (layer,) = layers_of(given.layers[:1], given.vision, given.mask)
    snapkv = WindowAttention(window=5)(layer).values.mean(1, keepdim=True) * 5
    snapkv = snapkv.masked_fill(~layer.valid, 0.0)
    assert_close(plain, snapkv, rtol=1e-5, atol=1e-7)
    assert (scored(given) - plain).abs().max() > 0.01


def literal_information(scores):
    """The sum over levels and cells of p(a, y) log(p(a, y) / (p(a) p(y))), token by token."""
    n = len(scores)
    height = max(1, round(math.sqrt(n)))
    width = math.ceil(n / height)
    order = sorted(range(n), key=lambda i: scores[i])
    joint = {}
    for rank, token in enumerate(order):
        down = min(BINS - 1, math.floor((token // width + 0.5) / height * BINS))
        across = min(BINS - 1, math.floor((token % width + 0.5) / width * BINS))
        key = rank * LEVELS // n, (down, across)
        joint[key] = joint.get(key, 0) + 1 / n
    levels, places = {}, {}
    for (level, place), p in joint.items():
        levels[level] = levels.get(level, 0) + p
        places[place] = places.get(place, 0) + p
    return sum(p * math.log(p / (levels[a] * places[y])) for (a, y), p in joint.items())


@pytest.mark.parametrize("tokens", [3, 200, 401])
def test_mutual_information_is_that_of_its_definition(tokens):
    scores = torch.rand(3, tokens, generator=torch.Generator().manual_seed(tokens))
    ours = mutual_information(scores)
    literal = [literal_information(row.tolist()) for row in scores]
    assert_close(ours, torch.tensor(literal, dtype=torch.float64), rtol=1e-4, atol=1e-6)


def test_only_images_age():
    assert ages(torch.tensor([-1, 0, 0, 4, -1, 7])).tolist() == [0, 2, 2, 1, 0, 0]
    assert ages(torch.tensor([-1, -1])).tolist() == [0, 0]


def test_tokens_that_a_head_evicted_count_for_the_others_alone():
    """Heads that hold different slots are compared token by token."""
    given = prompt([60], h=2, g=2, d=8)
    (layer,) = layers_of(given.layers[:1], given.vision, hidden_states=[torch.ones(1, 60, 6)])
    score = foveate.star_kv(budget=20, window=5).score
    layer = replace(layer, state=score.observe(layer))
    gone = layer.pos.clone()
    gone[0, 1, 10] = -1
    # slots ascend, the empty one first
    order = gone.argsort(dim=-1, stable=True)
    moved = {name: t.gather(-1, order) for name, t in layer.state.items()}
    slots = replace(
        layer.slots, pos=gone.gather(-1, order), image=layer.slots.image.gather(-1, order)
    )
    k = layer.k.gather(2, order[..., None].expand(layer.k.shape))
    found = score(replace(layer, slots=slots, k=k, state=moved)).values
    assert float(found[0, 1, 0]) == 0.0
    assert float(found[0, 0, 10]) > 0.0
    others = torch.arange(60) != 10
    assert torch.equal(found[0, 1, 1:], found[0, 0, others])  # token by token, not slot by slot
    assert len(found[0, 0].unique()) > 40
