"""The highest scores, and what is kept beside them."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import foveate
from foveate.errors import InvalidParameter
from foveate.stages.select import TopK, by_partition, by_top_k, highest
from tests.core.lean import lean
from tests.core.users import unchecked

from .layers import layer_of, random_layer


def sorted_choice(scores, count):
    """Positions of the ``count`` highest, of equal ones the earlier, by sorting."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return sorted(order[:count])


def positions(mask):
    return [[[i for i, on in enumerate(head) if on] for head in row] for row in mask.tolist()]


@st.composite
def scores_and_counts(draw):
    """Few values, so that ties abound; counts never above the slots that can be kept."""
    b, h, n = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    value = st.sampled_from([0.0, 0.25, 0.5, 1.0, -1.0, math.inf, -math.inf])
    scores, counts = [], []
    for _ in range(b):
        scores.append([draw(st.lists(value, min_size=n, max_size=n)) for _ in range(h)])
        room = [sum(s > -math.inf for s in head) for head in scores[-1]]
        counts.append([draw(st.integers(0, most)) for most in room])
    return scores, counts


@lean
@given(case=scores_and_counts())
@example(case=([[[1.0, 1.0, 1.0]]], [[0]]))
@example(case=([[[0.0, 1.0, 1.0], [2.0, 2.0, 2.0]]], [[0, 2]]))
@example(case=([[[-math.inf, 0.5]]], [[1]]))
def test_highest_marks_what_sorting_would_with_ties_to_the_earlier(case):
    scores, counts = case
    mask = highest(torch.tensor(scores), torch.tensor(counts))
    assert positions(mask) == [
        [sorted_choice(*pair) for pair in zip(*row, strict=True)]
        for row in zip(scores, counts, strict=True)
    ]


@lean
@given(case=scores_and_counts())
def test_the_lowest_that_is_kept_is_the_same_on_every_device(case):
    scores, counts = map(torch.tensor, case)
    assert torch.equal(by_partition(scores, counts), by_top_k(scores, counts))


def protected(select, lengths, tokens):
    """Per row, protected positions without padding; the same in both heads."""
    layer = random_layer(lengths)
    mask = select.protect(layer.slots.with_budget(torch.tensor(tokens))) & layer.valid
    assert torch.equal(mask[:, 0], mask[:, 1])
    return [[int(p) for p in layer.pos[row, 0][mask[row, 0]]] for row in range(len(lengths))]


def test_sinks_and_recent_tokens_are_those_of_each_row():
    assert protected(TopK(recent=2, sinks=1), [7, 4], [9, 9]) == [[0, 5, 6], [0, 2, 3]]
    assert protected(TopK(recent=3), [7, 2], [9, 9]) == [[4, 5, 6], [0, 1]]
    assert protected(TopK(sinks=3), [7, 2], [9, 9]) == [[0, 1, 2], [0, 1]]
    assert protected(TopK(recent=3, sinks=2), [4, 1], [9, 9]) == [[0, 1, 2, 3], [0]]
    assert protected(TopK(), [7, 2], [9, 9]) == [[], []]


def test_a_share_of_the_budget_is_recent_in_every_row():
    assert protected(TopK(recent=0.5), [9, 6], [7, 2]) == [[6, 7, 8], [5]]
    assert protected(TopK(recent=0.0), [9, 6], [7, 2]) == [[], []]


@lean
@given(percent=st.integers(0, 99), tokens=st.integers(1, 2000))
@example(percent=53, tokens=100)
@example(percent=21, tokens=300)
def test_a_share_of_the_budget_is_rounded_down_without_an_error_of_floating_point(percent, tokens):
    k = torch.zeros(1, 1, 2000, 1)
    marked = TopK(recent=percent / 100).protect(layer_of(k, k, tokens=torch.tensor([tokens])).slots)
    assert int(marked.sum()) == percent * tokens // 100


def test_what_always_counts_is_the_sinks_and_a_recent_number():
    assert TopK(recent=8, sinks=4).protects == 12


@lean
@given(percent=st.integers(0, 99), sinks=st.integers(0, 40))
@example(percent=99, sinks=40)
def test_what_is_protected_is_the_smallest_budget_that_holds_it(percent, sinks):
    """Recent tokens that are a share of the budget grow with it."""
    select = TopK(recent=percent / 100, sinks=sinks)
    holds = (t for t in range(1, 10**4) if sinks + percent * t // 100 <= t)
    assert max(1, select.protects) == next(holds)
    assert select.always(select.protects) == select.protects


def test_protected_tokens_are_kept_whatever_their_score_and_count_inside_the_budget():
    k = torch.arange(1.0, 10.0).view(1, 1, 9, 1)  # the earlier the lower, so the better for knorm
    policy = foveate.knorm(budget=5).but(select=TopK(recent=2, sinks=1))
    (kept,) = foveate.compress_tensors(policy, [(k, k, k)])
    assert kept.positions(0, 0).tolist() == [0, 1, 2, 7, 8]
    (kept,) = foveate.compress_tensors(policy.but(score="value_norm"), [(k, k, k)])
    assert kept.positions(0, 0).tolist() == [0, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"recent": -1}, "recent=-1"),
        ({"recent": 1.5}, "recent=1.5"),
        ({"recent": 1.0}, "recent=1.0"),
        ({"recent": -0.5}, "recent=-0.5"),
        ({"recent": math.nan}, "recent=nan"),
        ({"recent": math.inf}, "recent=inf"),
        ({"sinks": -1}, "sinks=-1"),
    ],
)
def test_a_parameter_out_of_range_is_refused_by_value(values, text):
    with pytest.raises(InvalidParameter) as refused, unchecked():
        TopK(**values)
    assert text in str(refused.value)
