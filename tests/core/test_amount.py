"""Budgets are exact, print as they read, and say what is wrong with them."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import foveate
from foveate.errors import InvalidBudget
from foveate.policies.amount import Amount

from .lean import lean

UNITS = {
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}

lengths = st.lists(st.integers(1, 5000), min_size=1, max_size=4)


def tokens_of(raw, lengths, pair_bytes=1):
    return Amount.of(raw).tokens(torch.tensor(lengths), pair_bytes).tolist()


@lean
@given(parts=st.integers(1, 10**6), lengths=lengths)
@example(parts=290_000, lengths=[100])
def test_a_fraction_is_rounded_down_without_an_error_of_floating_point(parts, lengths):
    """``parts`` are millionths, so whole-number arithmetic gives the answer."""
    expected = [max(1, parts * n // 10**6) for n in lengths]
    assert tokens_of(parts / 10**6, lengths) == expected
    assert tokens_of(f"{parts / 10**4:.4f}%", lengths) == expected
    assert tokens_of(f"{parts / 10**6:.6f}", lengths) == expected


def test_29_percent_of_100_tokens_is_29_where_floats_say_28():
    assert int(0.29 * 100) == 28
    assert tokens_of(0.29, [100]) == tokens_of("29%", [100]) == [29]


def test_one_token_is_kept_of_a_prompt_too_short_for_its_fraction():
    assert tokens_of("1%", [1, 99, 100, 200]) == [1, 1, 1, 2]


def test_a_number_of_tokens_is_the_same_for_every_row():
    assert tokens_of(7, [3, 100]) == tokens_of("7", [3, 100]) == [7, 7]


def test_the_integer_1_is_one_token_and_the_float_is_everything():
    assert (tokens_of(1, [10]), Amount.of(1).everything) == ([1], False)
    assert (tokens_of(1.0, [10]), Amount.of(1.0).everything) == ([10], True)
    assert Amount.of("100%").everything
    assert not Amount.of("99.9%").everything


@lean
@given(
    number=st.integers(1, 999),
    unit=st.sampled_from(sorted(UNITS)),
    lengths=lengths,
    pair_bytes=st.integers(1, 10**5),
)
@example(number=64, unit="MB", lengths=[3000, 20], pair_bytes=24_576)
def test_bytes_are_shared_by_the_rows_and_never_exceeded(number, unit, lengths, pair_bytes):
    total, one_token_a_row = number * UNITS[unit], pair_bytes * len(lengths)
    if total < one_token_a_row:
        with pytest.raises(InvalidBudget, match=str(one_token_a_row)):
            tokens_of(f"{number}{unit}", lengths, pair_bytes)
        return
    (each,) = set(tokens_of(f"{number} {unit.lower()}", lengths, pair_bytes))
    assert each * one_token_a_row <= total < (each + 1) * one_token_a_row


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_budget_in_bytes_is_filled_to_the_last_token_that_fits(dtype):
    """Of keys, values and columns."""
    layers = [
        (torch.randn(2, 4, 50, d), torch.randn(2, h, 50, d), torch.randn(2, h, 50, e))
        for h, d, e in [(2, 8, 8), (4, 8, 4), (1, 16, 8)]
    ]
    layers = [tuple(t.to(dtype) for t in layer) for layer in layers]

    size = torch.finfo(dtype).bits // 8
    a_token = 2 * (size * (2 * 16 + 4 * 12 + 1 * 24) + 4 * (2 + 4 + 1))
    for tokens in (1, 20, 21):
        for more in (0, a_token - 1):
            total = tokens * a_token + more
            kept = foveate.compress_tensors(foveate.knorm(budget=f"{total}B"), layers)
            assert all(bool((one.counts == tokens).all()) for one in kept)


fractions = st.one_of(
    st.floats(1e-9, 1.0, exclude_min=True),
    st.integers(1, 100).map(lambda p: f"{p}%"),
    st.decimals("0.0001", 100, places=4).map(lambda p: f"{p}%"),
)
tokens = st.one_of(st.integers(1, 10**9), st.integers(1, 10**9).map(str))
in_bytes = st.builds(
    "{}{}".format,
    st.one_of(st.integers(1, 10**6), st.decimals(1, 1000, places=2)),
    st.sampled_from(sorted(UNITS)),
)


@lean
@given(raw=fractions)
@example(raw=1 / 3)
@example(raw=0.1 + 0.2)
def test_a_fraction_prints_as_text_that_reads_as_the_same_amount(raw):
    amount = Amount.of(raw)
    assert amount.kind == "fraction"
    assert str(amount).endswith("%")
    assert Amount.of(str(amount)) == amount


@lean
@given(raw=tokens)
def test_a_number_of_tokens_prints_as_text_that_reads_as_the_same_amount(raw):
    amount = Amount.of(raw)
    assert amount.kind == "tokens"
    assert str(amount) == str(raw)
    assert Amount.of(str(amount)) == amount


@lean
@given(raw=in_bytes)
@example(raw="64MB")
@example(raw="1.5B")
def test_a_number_of_bytes_prints_as_text_that_reads_as_the_same_amount(raw):
    amount = Amount.of(raw)
    assert amount.kind == "bytes"
    assert Amount.of(str(amount)) == amount


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (0.2, "20%"),
        ("0.2", "20%"),
        ("20 %", "20%"),
        (0.005, "0.5%"),
        ("7.5%", "7.5%"),
        (256, "256"),
        ("64MB", "64MB"),
        ("64 mb", "64MB"),
        ("1000KB", "1MB"),
        ("0.5GB", "500MB"),
        ("1KiB", "1024B"),
        (1.0, "100%"),
    ],
)
def test_amounts_print_in_their_shortest_form(raw, text):
    assert str(Amount.of(raw)) == text


def test_equal_amounts_are_equal_however_they_are_written():
    assert Amount.of(0.2) == Amount.of("20%") == Amount.of("0.20") == Amount.of(Amount.of(0.2))
    assert len({Amount.of("64MB"), Amount.of("64000KB"), Amount.of("0.064GB")}) == 1
    assert Amount.of(1) != Amount.of(1.0)


BAD = [
    0,
    -1,
    -256,
    math.nan,
    math.inf,
    -math.inf,
    1.5,
    256.0,
    -0.2,
    0.0,
    True,
    False,
    None,
    [0.2],
    "abc",
    "5 apples",
    "",
    "20%%",
    "0%",
    "-3%",
    "101%",
    "0MB",
    "64iB",
    "nan",
    "inf",
]


@pytest.mark.parametrize("raw", BAD, ids=repr)
def test_what_is_no_amount_is_refused_by_value_and_with_a_way_out(raw):
    with pytest.raises(InvalidBudget) as refused:
        Amount.of(raw)
    assert repr(raw) in str(refused.value)
    assert "'20%'" in str(refused.value)
    assert "'64MB'" in str(refused.value)


def test_a_float_that_must_mean_tokens_is_told_to_be_an_integer():
    with pytest.raises(InvalidBudget, match="write the integer 256"):
        Amount.of(256.0)


def test_the_budget_of_a_method_is_checked_when_the_policy_is_made():
    with pytest.raises(InvalidBudget, match="'5 apples'"):
        foveate.snapkv(budget="5 apples")
    with pytest.raises(InvalidBudget, match="True"):
        foveate.policy("snapkv:budget=true")
