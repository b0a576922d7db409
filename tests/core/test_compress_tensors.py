"""What every method keeps of a prompt: exact totals, never padding, row by row."""

import math
from itertools import groupby
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.core.errors import InvalidBudget, InvalidInput, InvalidParameter, MissingModality
from foveate.core.layer import Scores
from foveate.core.protocols import NoMerge
from foveate.stages.budget import Pyramid, Uniform
from foveate.stages.score import KeyNorm
from foveate.stages.select import TopK

from .lean import lean
from .prompts import GivenCounts, Spy, prompt, prompts
from .users import unchecked

SMALL = {"window": 3, "sinks": 2, "kernel": 3}
CALIBRATED = {"headkv", "sparsemm"}  # tests/backends/test_head_tables.py
WHOLE = {"full", "kivi"}  # keep everything: there is no budget
NAMES = sorted(set(foveate.METHODS) - CALIBRATED)
every_method = pytest.mark.parametrize("name", sorted(set(NAMES) - WHOLE))
budgets = st.integers(3, 20) | st.integers(1, 99).map(lambda p: f"{p}%")


def of(name, budget):
    method = foveate.METHODS[name]
    small = {key: value for key, value in SMALL.items() if key in method.parameters}
    if name == "lookm":  # whose recent tokens are half of any budget
        del small["sinks"]
    return method(budget=budget, **small)


def compressed(policy, given):
    return foveate.compress_tensors(policy, given.layers, given.vision, given.mask)


def tokens_of(budget, lengths):
    """Tokens per head that a budget means for each row, in whole numbers."""
    if isinstance(budget, int):
        return [budget] * len(lengths)
    return [max(1, int(budget.rstrip("%")) * length // 100) for length in lengths]


def too_small(name, tokens, lengths):
    """Whether what is always kept does not fit some row."""
    always = {
        **dict.fromkeys(("adakv", "mixkv", "pyramidkv", "snapkv"), SMALL["window"]),
        **dict.fromkeys(("expected_attention", "nacl", "roco", "streaming_llm"), SMALL["sinks"]),
        **{"elastic_cache": 2, "prefixkv": 2, "tgv_kv": SMALL["sinks"] + 1, "tova": 1},
    }.get(name, 0)
    return any(t < min(always, n) and t < n for t, n in zip(tokens, lengths, strict=True))


def sets(kept, pads):
    """[row][head] -> kept positions, counted without padding."""
    b, h, _ = kept.mask.shape
    return [[[int(p) - pads[row] for p in kept.positions(row, head)] for head in range(h)]
            for row in range(b)]  # fmt: skip


@every_method
@lean
@given(given=prompts, budget=budgets)
def test_the_kept_pairs_are_the_budget_exactly_and_never_padding(name, given, budget):
    tokens = tokens_of(budget, given.lengths)
    if too_small(name, tokens, given.lengths):
        with pytest.raises(InvalidBudget, match="always kept"):
            compressed(of(name, budget), given)
        return
    policy, totals = of(name, budget), []
    for (_, k, v), kept in zip(given.layers, compressed(policy, given), strict=True):
        b, h = k.shape[:2]
        assert kept.mask.shape == k.shape[:3]
        totals.append(kept.counts.sum(1).tolist())
        for row in range(b):
            for head in range(h):
                positions = kept.positions(row, head).tolist()
                assert positions == sorted(set(positions))
                assert all(given.pads[row] <= p < k.shape[2] for p in positions)
                if isinstance(policy.merge, NoMerge):
                    assert torch.equal(kept.keys(row, head), k[row, head, positions])
                    assert torch.equal(kept.values(row, head), v[row, head, positions])
    exact = [min(t, n) * h for t, n in zip(tokens, given.lengths, strict=True)]
    if policy.scope == "layer" and not isinstance(policy.budget, Pyramid):
        assert totals == [exact] * len(totals)
    assert [sum(row) for row in zip(*totals, strict=True)] == [t * len(totals) for t in exact]


@every_method
@lean
@given(given=prompts, budget=st.integers(3, 12))
def test_a_row_keeps_what_it_keeps_alone_and_in_any_place_of_the_batch(name, given, budget):
    policy = of(name, budget)
    together = [sets(kept, given.pads) for kept in compressed(policy, given)]
    again = [sets(kept, given.pads) for kept in compressed(policy, given)]
    assert again == together
    for row in range(len(given.lengths)):
        alone = compressed(policy, given.alone(row))
        assert [sets(kept, [0])[0] for kept in alone] == [layer[row] for layer in together]
    order = list(range(len(given.lengths)))[::-1]
    turned = given.rows(order)
    assert [sets(kept, turned.pads) for kept in compressed(policy, turned)] == [
        [layer[row] for row in order] for layer in together
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", ["100%", 9, 10_000])
def test_a_budget_of_the_whole_prompt_keeps_all_tokens_and_scores_nothing(name, budget):
    given = prompt([9, 4], depth=2, g=2)
    policy = foveate.policy(name) if name in WHOLE else of(name, budget)
    for (_, k, v), kept in zip(given.layers, compressed(policy, given), strict=True):
        assert torch.equal(kept.mask, given.mask.bool()[:, None].expand(kept.mask.shape))
        assert kept.scores is None
        assert torch.equal(kept.k, k)
        assert torch.equal(kept.v, v)


def test_a_row_that_fits_is_kept_whole_beside_one_that_does_not():
    (kept,) = compressed(foveate.knorm(budget=5), prompt([12, 4], h=3))
    assert kept.counts.tolist() == [[5, 5, 5], [4, 4, 4]]
    assert sets(kept, [0, 8])[1] == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("name", ["knorm", "vnorm"])
@pytest.mark.parametrize(
    ("recent", "expected"), [(0, [0, 1, 2, 3]), (2, [0, 1, 7, 8]), (4, [5, 6, 7, 8])]
)
def test_of_equal_scores_the_earlier_token_is_kept(name, recent, expected):
    same = torch.ones(2, 2, 9, 4)
    policy = foveate.METHODS[name](budget=4, recent=recent)
    (kept,) = foveate.compress_tensors(policy, [(same, same, same)])
    assert sets(kept, [0, 0]) == [[expected] * 2] * 2


def test_scores_are_raw_with_infinity_at_protected_and_minus_infinity_at_padded_slots():
    given = prompt([6, 9], h=2)
    (kept,) = compressed(foveate.knorm(budget=5, recent=2), given)
    ((_, k, _),) = given.layers
    for row, pad in enumerate(given.pads):
        for head in range(2):
            scores = kept.scores[row, head].tolist()
            assert scores[:pad] == [-math.inf] * pad
            assert scores[-2:] == [math.inf] * 2
            norms = [math.sqrt(sum(x * x for x in key)) for key in k[row, head].tolist()]
            assert scores[pad:-2] == pytest.approx([-norm for norm in norms[pad:-2]])


def test_a_boolean_mask_and_one_of_numbers_say_the_same():
    given = prompt([6, 9])
    masks = (given.mask, given.mask.bool(), given.mask.float())
    kept = [foveate.compress_tensors(foveate.knorm(budget=3), given.layers, attention_mask=m)[0]
            for m in masks]  # fmt: skip
    assert torch.equal(kept[0].mask, kept[1].mask)
    assert torch.equal(kept[0].mask, kept[2].mask)


def test_kept_pairs_can_be_stored():
    given = prompt([9, 6], h=2)
    (kept,) = compressed(foveate.knorm(budget=3), given)
    columns = torch.arange(9).expand(2, 2, 9)
    pairs = kept.store(columns, first=9)
    assert pairs.columns.tolist() == [
        [kept.positions(row, head).tolist() for head in range(2)] for row in range(2)
    ]
    assert torch.equal(pairs.k[1, 1], kept.keys(1, 1))


# What stages are shown


def shown(given, **how):
    spy = Spy()
    policy = foveate.knorm(budget=1).but(score=spy)
    foveate.compress_tensors(policy, given.layers, attention_mask=given.mask, **how)
    return spy.shown


def test_stages_are_shown_positions_without_padding_and_the_place_of_the_layer():
    given = prompt([3, 5], h=2, g=2, d=4, depth=3)
    layers = shown(given)
    for index, (layer, (q, k, v)) in enumerate(zip(layers, given.layers, strict=True)):
        assert (layer.index, layer.depth, layer.groups) == (index, 3, 2)
        assert layer.pos.tolist() == [[[-2, -1, 0, 1, 2]] * 2, [[0, 1, 2, 3, 4]] * 2]
        assert layer.q_pos.tolist() == [[-2, -1, 0, 1, 2], [0, 1, 2, 3, 4]]
        assert layer.lengths.tolist() == [3, 5]
        assert layer.mask is None
        assert layer.image is None
        assert (layer.q is q, layer.k is k, layer.v is v) == (True, True, True)
        assert [note["index"].item() for note in layer.earlier] == list(range(index))


def test_the_scale_is_one_over_the_root_of_the_head_size_unless_given():
    assert shown(prompt([5], d=4))[0].scale == 0.5
    assert shown(prompt([5], d=4), scale=1.0)[0].scale == 1.0
    assert shown(prompt([5], d=4), scale=0.0)[0].scale == 0.0


@lean
@given(rows=st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=3))
def test_every_run_of_visual_tokens_is_an_image_numbered_within_its_row(rows):
    expected = []
    for row in rows:
        numbered, image = [], -1
        for visual, run in groupby(row):
            image += visual
            numbered += [image if visual else -1 for _ in run]
        expected.append(numbered)
    given = prompt([7] * len(rows), h=2)
    (layer,) = shown(given, vision=torch.tensor(rows))
    assert layer.image.tolist() == [[row, row] for row in expected]
    assert layer.vision.tolist() == [[row, row] for row in rows]


class NeedsVision(KeyNorm):
    """A score that asks which tokens are visual."""

    def __call__(self, layer):
        return Scores(layer.vision.float())


def test_a_policy_that_needs_to_know_what_is_visual_gets_it_or_says_how_to_tell():
    given = prompt([6])
    policy = foveate.knorm(budget=2).but(score=NeedsVision())
    with pytest.raises(MissingModality, match="vision="):
        foveate.compress_tensors(policy, given.layers)
    vision = torch.tensor([[False, False, True, False, False, True]])
    (kept,) = foveate.compress_tensors(policy, given.layers, vision=vision)
    assert sets(kept, [0]) == [[[2, 5], [2, 5]]]


# Budgets of others


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


# Errors


def test_a_budget_below_what_is_always_kept_of_this_prompt_is_refused_by_row():
    given = prompt([30, 8])
    with pytest.raises(InvalidBudget, match=r"10% keeps 1 of the 8 tokens of row 1.* the 3 that"):
        compressed(foveate.snapkv(budget="10%", window=3), given)
    with pytest.raises(InvalidBudget, match=r"10% keeps 3 of the 30 tokens of row 0.* the 5 that"):
        compressed(foveate.snapkv(budget="10%", window=5), given)


def tensors(*shapes):
    return tuple(torch.zeros(shape) for shape in shapes)


GOOD = [(2, 4, 9, 8), (2, 2, 9, 8), (2, 2, 9, 6)]
WRONG_SHAPES = {
    "three axes": [(4, 9, 8), (2, 9, 8), (2, 9, 8)],
    "rows differ": [(1, 4, 9, 8), *GOOD[1:]],
    "heads that do not divide": [(2, 3, 9, 8), *GOOD[1:]],
    "keys and values of other heads": [GOOD[0], (2, 2, 9, 8), (2, 1, 9, 6)],
    "queries of other tokens": [(2, 4, 8, 8), *GOOD[1:]],
    "values of other tokens": [*GOOD[:2], (2, 2, 8, 6)],
    "another head size of queries": [(2, 4, 9, 6), *GOOD[1:]],
    "no tokens": [(2, 4, 0, 8), (2, 2, 0, 8), (2, 2, 0, 6)],
    "no heads": [(2, 0, 9, 8), (2, 0, 9, 8), (2, 0, 9, 6)],
}


@pytest.mark.parametrize("first", [True, False], ids=["first layer", "second layer"])
@pytest.mark.parametrize("shapes", WRONG_SHAPES.values(), ids=WRONG_SHAPES.keys())
def test_tensors_that_do_not_fit_together_are_refused_with_their_shapes(shapes, first):
    layers = [tensors(*shapes), tensors(*GOOD)] if first else [tensors(*GOOD), tensors(*shapes)]
    with pytest.raises(InvalidInput) as refused, unchecked():
        foveate.compress_tensors(foveate.knorm(budget=3), layers)
    assert f"layer {0 if first else 1}" in str(refused.value)
    assert str(shapes[1]) in str(refused.value)


@pytest.mark.parametrize(
    "other",
    [
        [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 6)],
        [(1, 4, 9, 8), (1, 2, 9, 8), (1, 2, 9, 6)],
    ],
    ids=["tokens", "rows"],
)
def test_layers_of_different_prompts_are_refused(other):
    with pytest.raises(InvalidInput, match="layer 1"):
        foveate.compress_tensors(foveate.knorm(budget=3), [tensors(*GOOD), tensors(*other)])


def test_layers_may_differ_in_heads_and_head_sizes():
    layers = [tensors(*GOOD), tensors((2, 6, 9, 5), (2, 3, 9, 5), (2, 3, 9, 2))]
    kept = foveate.compress_tensors(foveate.knorm(budget=3), layers)
    assert [one.counts.tolist() for one in kept] == [[[3, 3]] * 2, [[3, 3, 3]] * 2]


def test_no_layers_are_refused():
    with pytest.raises(InvalidInput, match="layers is empty"):
        foveate.compress_tensors(foveate.full(), [])


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ([[1, 1, 0], [1, 1, 1]], "on the right"),
        ([[1, 0, 1], [1, 1, 1]], "in the middle"),
        ([[1, 1, 1], [0, 0, 0]], "row 1 is nothing but padding"),
        ([[1, 1, 1]], "shape \\(1, 3\\), expected \\(2, 3\\)"),
        ([[1, 1], [1, 1]], "shape \\(2, 2\\), expected \\(2, 3\\)"),
        ([1, 1, 1], "shape \\(3,\\)"),
    ],
)
def test_a_mask_that_is_not_left_padding_is_refused(mask, says):
    layers = [tensors((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4))]
    with pytest.raises(InvalidInput, match=says):
        foveate.compress_tensors(foveate.full(), layers, attention_mask=torch.tensor(mask))


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (1, 3), (3,)])
def test_vision_of_another_shape_is_refused(shape):
    layers = [tensors((2, 2, 3, 4), (2, 2, 3, 4), (2, 2, 3, 4))]
    vision = torch.zeros(shape, dtype=torch.bool)
    with pytest.raises(InvalidInput, match="vision"), unchecked():
        foveate.compress_tensors(foveate.full(), layers, vision=vision)


def test_scores_that_are_no_numbers_are_refused():
    q, k, v = tensors(*GOOD)
    with pytest.raises(InvalidParameter, match="layer 0 contain NaN"):
        foveate.compress_tensors(foveate.knorm(budget=3), [(q, k * torch.nan, v)])


class Waiting(Uniform):
    """A budget that looks at what it is given."""

    seen: ClassVar[list] = []

    def __call__(self, scored, tokens):
        self.seen.extend(one.layer for one in scored)
        return super().__call__(scored, tokens)


def test_a_layer_whose_scores_are_known_holds_one_query_and_still_its_length():
    given = prompt([3, 5], h=2, g=2, d=4, depth=3)
    Waiting.seen.clear()
    compressed(foveate.snapkv(budget=2, window=2, kernel=1).but(budget=Waiting(amount=2)), given)
    for layer, (q, _, _) in zip(Waiting.seen, given.layers, strict=True):
        assert torch.equal(layer.q, q[:, :, -1:])
        assert layer.q.untyped_storage().nbytes() == layer.q.nbytes < q.nbytes
        assert layer.lengths.tolist() == [3, 5]
        assert layer.column_sums is layer.window is None
