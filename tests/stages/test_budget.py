"""Exact totals, whatever was wished for."""

from dataclasses import replace

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from foveate.cache.layer import Scored, Scores
from foveate.stages.budget import LayerShares, OneRanking, Uniform
from foveate.stages.budget.exact_totals import fill
from tests.core.lean import lean

from .layers import changed, random_layer


@st.composite
def wishes(draw):
    places = st.integers(1, 8)
    limits = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted)
    bounds = draw(st.lists(limits, min_size=1, max_size=draw(places)))
    wish = draw(st.lists(st.integers(-5, 40), min_size=len(bounds), max_size=len(bounds)))
    total = draw(st.integers(0, 1 + sum(most for _, most in bounds)))
    return wish, [least for least, _ in bounds], [most for _, most in bounds], total


def filled(wish, least, most, total):
    return fill(*(torch.tensor(x) for x in (wish, least, most)), total).tolist()


@lean
@given(case=wishes())
@example(case=([3, 3, 3], [0, 0, 0], [9, 9, 9], 10))
@example(case=([0, 0], [0, 0], [0, 0], 5))
@example(case=([9, 9, 9], [2, 3, 4], [9, 9, 9], 0))
def test_the_total_is_met_exactly_within_the_limits_or_as_nearly_as_they_allow(case):
    _, least, most, total = case
    counts = filled(*case)
    assert all(low <= c <= high for low, c, high in zip(least, counts, most, strict=True))
    assert sum(counts) == sorted([sum(least), total, sum(most)])[1]


@lean
@given(case=wishes())
def test_a_wish_that_fits_is_granted(case):
    wish, least, most, _ = case
    granted = [min(max(w, lo), hi) for w, lo, hi in zip(wish, least, most, strict=True)]
    assert filled(wish, least, most, sum(granted)) == granted


def one_by_one(wish, least, most, total):
    """A place at a time, round after round, the earlier first in each round."""
    counts = [min(max(w, lo), hi) for w, lo, hi in zip(wish, least, most, strict=True)]
    total = sorted([sum(least), total, sum(most)])[1]
    step = 1 if total > sum(counts) else -1
    while sum(counts) != total:
        for i in range(len(counts)):
            if sum(counts) != total and least[i] <= counts[i] + step <= most[i]:
                counts[i] += step
    return counts


@lean
@given(case=wishes())
@example(case=([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 9, 9], 9))
def test_what_is_missing_is_spread_evenly_as_if_handed_out_one_by_one(case):
    assert filled(*case) == one_by_one(*case)


def test_the_remainder_goes_to_the_earlier_places():
    assert filled([3, 3, 3], [0, 0, 0], [9, 9, 9], 11) == [4, 4, 3]
    assert filled([3, 3, 3], [0, 0, 0], [9, 9, 9], 7) == [2, 2, 3]
    assert filled([5, 5, 5], [0, 0, 0], [2, 9, 9], 15) == [2, 7, 6]


def scored_layer(available, protected):
    """A layer of heads that hold ``available`` slots [b][h], of which ``protected`` must stay."""
    n = max(max(row) for row in available)
    layer = random_layer([n] * len(available), h=len(available[0]))
    slots = torch.arange(n)
    held = slots >= n - torch.tensor(available)[..., None]
    pos = torch.where(held, slots, -1)
    layer = changed(layer, pos=pos, scale=1.0)
    raw = torch.zeros(pos.shape)
    values = raw.masked_fill(~held, -torch.inf)
    values[slots >= n - torch.tensor(protected)[..., None]] = torch.inf
    return Scored(layer, Scores(values), raw, torch.full((len(available),), n))


def test_uniform_gives_every_head_of_every_layer_the_same():
    layers = [scored_layer([[9, 9], [7, 7]], [[1, 1], [1, 1]])] * 3
    counts = Uniform(amount=4)(layers, torch.tensor([4, 6]))
    assert [c.tolist() for c in counts] == [[[4, 4], [6, 6]]] * 3


def test_a_head_that_holds_less_passes_the_rest_on_to_its_layer():
    one = scored_layer([[2, 9, 9], [9, 9, 9]], [[1, 1, 1], [1, 1, 1]])
    (counts,) = Uniform(amount=4)([one], torch.tensor([4, 4]))
    assert counts.tolist() == [[2, 5, 5], [4, 4, 4]]


def test_a_layer_that_holds_less_than_its_budget_keeps_all():
    one = scored_layer([[2, 3, 4]], [[0, 0, 0]])
    (counts,) = Uniform(amount=4)([one], torch.tensor([4]))
    assert counts.tolist() == [[2, 3, 4]]


def test_a_head_keeps_what_is_protected_even_while_others_pass_on():
    one = scored_layer([[1, 9, 9]], [[1, 8, 2]])
    (counts,) = Uniform(amount=4)([one], torch.tensor([4]))
    assert counts.tolist()[0][1] >= 8
    assert sum(counts.tolist()[0]) == 12


def test_a_mixed_budget_gives_a_part_to_all_layers_alike_and_the_rest_by_the_note():
    """Of 5 x 20 pairs a head, 80 are even, 16 a layer; of 20, half go to the first layer."""
    notes = [0.5, 0.3, 0.2, 0.0, 0.0]
    layers = [scored_layer([[99, 99]], [[0, 0]]) for _ in notes]
    layers = [
        replace(one, scores=one.scores._replace(notes={"mass": torch.tensor([note])}))
        for one, note in zip(layers, notes, strict=True)
    ]
    mixed = LayerShares(amount=20, of="mass", even=0.8)(layers, torch.tensor([20]))
    assert [c.tolist() for c in mixed] == [[[n, n]] for n in (26, 22, 20, 16, 16)]


def test_a_mixed_budget_gives_a_part_to_all_heads_alike_and_the_rest_by_rank():
    """Two layers of two heads, 10 pairs each: 32 are even, and the one best head gets the others,
    as the 40 best pairs of all are its own.
    """
    layers = [scored_layer([[99, 99]], [[0, 0]]) for _ in range(2)]
    layers[1].scores.values[0, 1] += 1 + torch.arange(99.0)
    for even, expected in ((0.0, [[0, 0], [0, 40]]), (0.8, [[8, 8], [8, 16]])):
        counts = OneRanking(amount=10, even=even)(layers, torch.tensor([10]))
        assert [c.tolist()[0] for c in counts] == expected
