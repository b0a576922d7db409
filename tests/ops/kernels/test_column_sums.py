"""Attention received, from a log-sum-exp and a second pass."""

import pytest
import torch
from torch.testing import assert_close

from foveate.ops.column_sums import (
    attention_with_counted_sums,
    attention_with_sums,
    column_sums,
)

from .inputs import KINDS, Draw, lengths

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_sums_are_the_references_for_every_type_and_head_size(dtype, d):
    """Padding ends within the queries, before them, and nowhere."""
    draw, (m, n) = Draw(dtype), lengths(dtype, d)
    q, k = draw.tokens_first(3, 4, m, d), draw.tokens_first(3, 2, n, d)
    pads = [n - m // 2, (n - m) // 2, 0]
    ours = column_sums(q, k, d**-0.5, None, pads, impl="triton")
    assert ours.dtype == torch.float32
    assert_close(ours, column_sums(q, k, d**-0.5, None, pads), **CLOSE)


@pytest.mark.parametrize(
    ("m", "n", "pads"),
    [(1, 1, None), (1, 130, [1]), (130, 130, [129]), (65, 66, None), (20, 20, [20])],
)
def test_sums_are_the_references_for_odd_lengths(m, n, pads):
    draw = Draw(seed=1)
    q, k = draw.channels_first(1, 3, m, 24), draw.channels_first(1, 1, n, 24)
    ours = column_sums(q, k, 0.5, None, pads, impl="triton")
    assert_close(ours, column_sums(q, k, 0.5, None, pads), **CLOSE)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("pads", [None, [0, 30]])
def test_masked_sums_are_the_references_even_of_queries_that_see_nothing(heads, pads):
    draw = Draw(seed=2)
    q, k = draw.tokens_first(2, 4, 70, 16), draw.tokens_first(2, 2, 90, 16)
    mask = draw.chance(0.3, 2, heads, 90, 70).transpose(2, 3)
    mask[:, :, 4] = False
    ours = column_sums(q, k, 0.5, mask, pads, impl="triton")
    assert_close(ours, column_sums(q, k, 0.5, mask, pads), **CLOSE)


@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_the_output_comes_with_the_sums_and_is_zero_for_padding(dtype, d):
    draw, e, (_, n) = Draw(dtype, seed=3), d // 2, lengths(dtype, d)
    q, k = draw.tokens_first(2, 4, n, d), draw.tokens_first(2, 2, n, d)
    v = draw.channels_first(2, 2, n, e)
    pads = [0, n // 2]
    out, sums = attention_with_sums(q, k, v, d**-0.5, pads, impl="triton")
    expected, expected_sums = attention_with_sums(q, k, v, d**-0.5, pads)
    assert_close(sums, expected_sums, **CLOSE)
    assert torch.equal(out[1, :, : n // 2], torch.zeros_like(out[1, :, : n // 2]))
    # weights are rounded to the values' type before they are multiplied
    rounding = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert_close(out, expected, rtol=0.0, atol=rounding)


def test_logits_of_any_size_are_no_trouble():
    draw = Draw(seed=4)
    q, k = 60 * draw.normal(1, 2, 70, 16), 60 * draw.normal(1, 1, 70, 16)
    ours = column_sums(q, k, 1.0, impl="triton")
    assert_close(ours, column_sums(q.double(), k.double(), 1.0), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("dtype", "d", "added"), [(*kind, (0.0, 1.5)[i % 2]) for i, kind in enumerate(KINDS)], ids=str
)
def test_counted_sums_are_the_references_for_every_type_and_head_size(dtype, d, added):
    draw, (m, n) = Draw(dtype, seed=5), lengths(dtype, d)
    q, k = draw.tokens_first(2, 4, m, d), draw.tokens_first(2, 2, n, d)
    v = draw.channels_first(2, 2, n, d)
    counts, pads = draw.normal(2, m, 2, 3).float().permute(0, 3, 2, 1), [n - m // 2, 0]
    out, sums = attention_with_counted_sums(q, k, v, counts, d**-0.5, added, pads, impl="triton")
    assert torch.equal(out, attention_with_sums(q, k, v, d**-0.5, pads, impl="triton")[0])
    _, expected = attention_with_counted_sums(q, k, v, counts, d**-0.5, added, pads)
    assert_close(sums, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("m", "n", "c", "pads"), [(1, 1, 1, None), (65, 130, 17, [129]), (20, 20, 2, [20])]
)
def test_counted_sums_are_the_references_for_odd_lengths(m, n, c, pads):
    draw = Draw(seed=6)
    q, k = draw.channels_first(1, 3, m, 24), draw.channels_first(1, 1, n, 24)
    counts = draw.normal(1, c, 3, m)
    _, sums = attention_with_counted_sums(q, k, k, counts, 0.5, 1.0, pads, impl="triton")
    _, expected = attention_with_counted_sums(q, k, k, counts, 0.5, 1.0, pads)
    assert_close(sums, expected, rtol=1e-4, atol=1e-4)
