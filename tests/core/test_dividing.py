"""One budget is divided by one rule: bits, then pairs, then tokens."""

import itertools
import math
from fractions import Fraction

import pytest
import torch

import foveate
from foveate.cache.pairs import Form
from foveate.compression.budget_division import bytes_of, divide, divided
from foveate.compression.byte_budget import Bytes
from foveate.errors import InvalidBudget, InvalidParameter, InvalidSpec, UnsupportedPolicy

FORMS = (Form(2, 4, 64, 64, torch.bfloat16),) * 3
LENGTHS = [150, 300]
FULL = 450 * 3 * 2 * 256
OPEN = "fastv.prune(layer=1,keep=auto)+snapkv+kivi(bits=auto,residual=4):window=4,budget={}"


def shares(budget, spec=OPEN):
    """The division of a budget, in bytes."""
    return divide(foveate.policy(spec.format(f"{budget}B")), FORMS, LENGTHS, max(LENGTHS))


def test_no_share_falls_where_the_budget_rises():
    divisions = [shares(budget) for budget in range(FULL // 70, FULL, FULL // 70)]
    for less, more in itertools.pairwise(divisions):
        assert less.keep.value <= more.keep.value
        assert (less.bits or 16) <= (more.bits or 16)
        assert less.tokens <= more.tokens
    assert [one.bits for one in divisions if one.bits != 4][:1] == [8]
    assert len({one.tokens for one in divisions}) > 20


@pytest.mark.parametrize("percent", [3, 5, 10, 20, 28])
def test_pairs_fill_the_budget_to_the_last_one(percent):
    policy = foveate.policy(OPEN.format(f"{percent}%"))
    division = divide(policy, FORMS, LENGTHS, 300)
    assert division.allowed == bytes_of(policy.amount, FORMS, LENGTHS) == FULL * percent // 100
    weighed = Bytes(divided(policy, FORMS, LENGTHS, 300), FORMS, 300)
    assert (
        weighed.at(division.tokens, LENGTHS)
        <= division.allowed
        < weighed.at(division.tokens + 1, LENGTHS)
    )
    held = sum(min(division.tokens, length) for length in LENGTHS) / sum(LENGTHS)
    assert 0 <= float(division.keep.value) - math.sqrt(held) < 0.001


def test_the_ends_are_exact():
    everything = shares(300 * 2 * 3 * 2 * 256)  # the padding of the shorter row is held as well
    assert everything[:3] == (foveate.policy(OPEN.format("1%")).amount.of(1.0), None, 300)
    policy = foveate.policy(OPEN.format("300MB"))
    assert divided(policy, FORMS, LENGTHS, 300).store.exact
    least = shares(1)  # what is always kept is no part of what is divided
    assert least.tokens == policy.least == 4
    assert least.keep.value == Fraction(math.ceil(1000 * math.sqrt(8 / 450)), 1000)


def test_a_share_of_one_row_does_not_depend_on_padding():
    policy = foveate.policy(OPEN.format("10%"))
    assert divide(policy, FORMS, [300], 300) == divide(policy, FORMS, [300], 700)


@pytest.mark.parametrize(
    ("spec", "keep", "bits"),
    [
        ("fastv.prune(layer=1,keep=40%)+snapkv+kivi(bits=auto):budget={}", "40%", 4),
        ("fastv.prune(layer=1,keep=auto)+snapkv+kivi(bits=2):budget={}", None, 2),
        ("fastv.prune(layer=1,keep=auto)+recommended:budget={}", None, None),
    ],
)
def test_what_is_given_stays(spec, keep, bits):
    made = divided(foveate.policy(spec.format("10%")), FORMS, LENGTHS, 300)
    assert made.left_open == ()
    assert keep is None or str(made.prune.keep) == keep
    assert getattr(made.store, "bits", None) == bits


WRITTEN = {
    OPEN: "fastv.prune(layer=1,keep={keep})+snapkv+kivi(bits=4,residual=4):budget={B}B,window=4",
    "mixkv+prefixkv+kivi:budget={},bits=auto": "mixkv+prefixkv+kivi:bits=4,budget={B}B",
    "knorm:budget={},store=kivi(bits=auto)": "knorm:budget={B}B,store=kivi(bits=4)",
    "knorm:budget={},prune=random_prune(keep=auto)": (
        "knorm:budget={B}B,prune=random_prune(keep={keep})"
    ),
    "policy:score=recency(),budget=uniform(amount={}),select=top_k(),store=kivi(bits=auto)": (
        "policy:score=recency(),budget=uniform(amount={B}B),select=top_k(),merge=no_merge(),"
        "when=after_prefill(),store=kivi(bits=4)"
    ),
}


@pytest.mark.parametrize("spec", WRITTEN)
def test_the_shares_written_out_are_a_spec(spec):
    policy = foveate.policy(spec.format("10%"))
    assert foveate.policy(policy.spec) == policy
    made, division = (rule(policy, FORMS, LENGTHS, 300) for rule in (divided, divide))
    assert made.spec == WRITTEN[spec].format(B=division.allowed, keep=division.keep)
    assert foveate.policy(made.spec) == made
    assert divided(made, FORMS, LENGTHS, 300) is made


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("fastv.prune(keep=auto)+full", InvalidBudget, r"keep=auto .* keeps everything"),
        ("kivi:bits=auto", InvalidBudget, r"bits=auto .* keeps everything"),
        ("snapkv+kivi(bits=auto):budget=100%", InvalidBudget, r"below 100% \(budget=10%\)"),
        ("snapkv+kivi(bits=auto):budget=256", InvalidBudget, "budget 256 counts pairs"),
        ("snapkv+kivi(bits=auto):budget=auto(0.9)", InvalidBudget, "counts pairs"),
        ("snapkv+kivi(bits=auto,of=visual):budget=9%", InvalidBudget, "does not say how many"),
        ("h2o+kivi(bits=auto):budget=9%,when=over_budget", InvalidBudget, "9% .*while it grows"),
        ("pyramiddrop.prune(keep=auto)+h2o:budget=9%", InvalidSpec, "no parameter 'keep'"),
        ("sparsevlm.prune(keep=auto)+h2o:budget=9%", InvalidParameter, "keep=auto needs a budget"),
        ("snapkv:budget=9%,window=auto", InvalidParameter, "window='auto'"),
    ],
)
def test_what_cannot_be_divided_is_refused_where_it_is_written(spec, error, said):
    with pytest.raises(error, match=said):
        foveate.policy(spec)


def test_a_place_that_divides_nothing_refuses_to_hold_or_to_choose():
    policy = foveate.policy(OPEN.format("10%"))
    with pytest.raises(UnsupportedPolicy, match=r"kivi\(bits=4\)"):
        _ = policy.store.layout
