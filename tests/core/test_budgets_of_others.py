"""Budgets and selections that anybody writes: free within their contract, refused beyond it."""

import pytest
import torch

import foveate
from foveate.errors import InvalidParameter
from foveate.stages.score import KeyNorm
from foveate.stages.select import TopK

from .prompts import GivenCounts, compressed, prompt


def with_counts(counts, scope="layer", amount=4, recent=0):
    budget = GivenCounts(amount=amount, counts=counts, scope=scope)
    return foveate.Policy(score=KeyNorm(), budget=budget, select=TopK(recent=recent))


def test_heads_may_keep_different_numbers_if_the_total_is_exact():
    given = prompt([9, 6], h=3)
    ((_, k, _),) = given.layers
    counts = [[0, 3, 9], [6, 5, 1]]
    (kept,) = compressed(with_counts([counts]), given)
    assert kept.counts.tolist() == counts
    norms = k.double().norm(dim=-1).tolist()
    for row, pad in enumerate(given.pads):
        for head in range(3):
            order = sorted(range(pad, 9), key=lambda p, r=row, i=head: norms[r][i][p])
            assert kept.positions(row, head).tolist() == sorted(order[: counts[row][head]])


@pytest.mark.parametrize(
    ("counts", "recent"),
    [
        ([[4, 4, 5], [4, 4, 4]], 0),  # one too many
        ([[4, 4, 4], [4, 4, 3]], 0),  # one too few
        ([[4, 4, 4], [7, 4, 1]], 0),  # more than the six tokens of row 1
        ([[-1, 4, 9], [4, 4, 4]], 0),  # less than nothing
        ([[2, 4, 6], [4, 4, 4]], 3),  # less than what is protected
    ],
)
def test_a_budget_that_breaks_its_contract_is_refused(counts, recent):
    given = prompt([9, 6], h=3)
    with pytest.raises(InvalidParameter, match="GivenCounts"):
        compressed(with_counts([counts], recent=recent), given)


def test_a_selection_that_keeps_another_number_is_refused():
    class OneMore(TopK):
        def __call__(self, scored, counts):
            return super().__call__(scored, counts + 1)

    with pytest.raises(InvalidParameter, match="slots instead of"):
        compressed(foveate.knorm(budget=3).but(select=OneMore()), prompt([9]))


def test_a_budget_over_all_layers_is_asked_once_and_adds_up_over_them():
    given = prompt([9, 6], h=2, depth=3)
    counts = [[[9, 8], [6, 2]], [[1, 2], [5, 3]], [[0, 4], [4, 4]]]
    policy = with_counts(counts, scope="model")
    kept = compressed(policy, given)
    assert [one.counts.tolist() for one in kept] == counts
    assert policy.budget.calls == [(3, [4, 4])]
    assert torch.stack([one.counts for one in kept]).sum((0, 2)).tolist() == [4 * 2 * 3] * 2
    assert policy.scope == "model"


def test_a_budget_over_all_layers_is_refused_if_the_layers_do_not_add_up():
    given = prompt([9], h=2, depth=2)
    with pytest.raises(InvalidParameter, match="allocated"):
        compressed(with_counts([[[4, 4]], [[4, 5]]], scope="model"), given)


def test_a_budget_of_a_layer_is_asked_layer_by_layer():
    given = prompt([9], h=2, depth=2)
    policy = with_counts([[[2, 6]], [[5, 3]]])
    assert [one.counts.tolist() for one in compressed(policy, given)] == [[[2, 6]], [[5, 3]]]
    assert policy.budget.calls == [(1, [4]), (1, [4])]
    with pytest.raises(InvalidParameter, match="allocated"):
        compressed(with_counts([[[2, 7]], [[5, 2]]]), given)


def test_a_layer_may_be_left_with_nothing():
    given = prompt([9], h=2, depth=2)
    empty, full = compressed(with_counts([[[0, 0]], [[8, 8]]], scope="model"), given)
    assert not bool(empty.mask.any())
    assert full.counts.tolist() == [[8, 8]]
    pairs = empty.store(torch.arange(9).expand(1, 2, 9), first=9)
    assert (pairs.counts.tolist(), pairs.padded().k.shape[2]) == ([[0, 0]], 0)
