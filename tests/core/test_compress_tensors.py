"""What every method keeps of a prompt: exact totals, never padding, row by row."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import foveate
from foveate.errors import InvalidBudget
from foveate.methods.fastv import FirstLayersWhole
from foveate.methods.pyramidkv import Pyramid
from foveate.policies.protocols import NoMerge

from .lean import leaner
from .prompts import compressed, prompt, prompts, sets

SMALL = {"window": 3, "sinks": 2, "kernel": 3}
WINDOWED = (
    "adakv",
    "bacon",
    "chunkkv",
    "criticalkv",
    "finch",
    "mixkv",
    "pyramidkv",
    "rkv",
    "snapkv",
    "star_kv",
    "think",
)
# tests/backends/test_head_tables.py, tests/methods/test_stored.py, test_duo_attention.py,
# test_fast_kvzip.py and test_kvzap.py
CALIBRATED = {
    "duo_attention",
    "fast_kvzip",
    "headkv",
    "kvzap",
    "kvzip",
    "q_filters",
    "sparsemm",
    "streammem",
    "triattention",
}
SINKS = (
    "cur",
    "divprune",
    "expected_attention",
    "lagkv",
    "leverage",
    "nacl",
    "non_causal_attention",
    "roco",
    "streaming_llm",
)
WHOLE = {"full", "kivi", "turboquant"}  # keep everything: there is no budget
NAMES = sorted(set(foveate.METHODS) - CALIBRATED)
every_method = pytest.mark.parametrize("name", sorted(set(NAMES) - WHOLE))
budgets = st.integers(3, 20) | st.integers(1, 99).map(lambda p: f"{p}%")


def of(name, budget):
    method = foveate.METHODS[name]
    small = {key: value for key, value in SMALL.items() if key in method.parameters}
    if name == "lookm":  # whose recent tokens are half of any budget
        del small["sinks"]
    if name == "simlayerkv":  # the same
        small["sinks"] = 0
    if name in ("compactor", "recommended"):
        small["recent"] = 1
    return method(budget=budget, **small)


def tokens_of(budget, lengths):
    """Tokens per head that a budget means for each row, in whole numbers."""
    if isinstance(budget, int):
        return [budget] * len(lengths)
    return [max(1, int(budget.rstrip("%")) * length // 100) for length in lengths]


def always_kept(name):
    """Tokens that are kept whatever the budget, which is raised to them."""
    return {
        **dict.fromkeys(WINDOWED, SMALL["window"]),
        **dict.fromkeys(SINKS, SMALL["sinks"]),
        **dict.fromkeys(("compactor", "recommended"), SMALL["sinks"] + 1),
        **dict.fromkeys(("aircache", "fastv", "pyramiddrop"), 1),
        **{
            "elastic_cache": 2,
            "prefixkv": SMALL["sinks"] + 1,
            "tgv_kv": SMALL["sinks"] + 1,
            "tova": 1,
            "vase": SMALL["window"] + SMALL["sinks"],
        },
    }.get(name, 0)


@every_method
@leaner
@given(given=prompts, budget=budgets)
def test_the_kept_pairs_are_the_budget_exactly_and_never_padding(name, given, budget):
    least, asked = always_kept(name), tokens_of(budget, given.lengths)
    tokens = [max(t, least) for t in asked]
    if any(t < least < n for t, n in zip(asked, given.lengths, strict=True)):
        with pytest.raises(InvalidBudget, match="always kept"):
            compressed(of(name, budget), given, strict=True)
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
    if policy.scope == "layer" and not isinstance(policy.budget, (FirstLayersWhole, Pyramid)):
        assert totals == [exact] * len(totals)
    assert [sum(row) for row in zip(*totals, strict=True)] == [t * len(totals) for t in exact]


@every_method
@leaner
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
def test_a_budget_of_the_whole_prompt_keeps_all_tokens_and_scores_nothing(name):
    given = prompt([9, 4], depth=2, g=2)
    for budget in ("100%", 9, 10_000):
        policy = foveate.policy(name) if name in WHOLE else of(name, budget)
        for (_, k, v), kept in zip(given.layers, compressed(policy, given), strict=True):
            assert torch.equal(kept.mask, given.mask.bool()[:, None].expand(kept.mask.shape)), (
                budget
            )
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
    kept = [
        foveate.compress_tensors(foveate.knorm(budget=3), given.layers, attention_mask=m)[0]
        for m in masks
    ]
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
