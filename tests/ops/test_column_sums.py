"""Attention received, against the whole softmax matrix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from foveate.ops.column_sums import (
    attention_with_counted_sums,
    attention_with_maxima,
    attention_with_sums,
    column_sums,
)
from foveate.ops.window_attention import window_attention
from tests.core.lean import lean


def literal(q, k, scale, seen):
    """[b, hq, n]: each query's softmax over ``seen(row, head of k, query, slot)``, added up."""
    (b, hq, m, _), (h, n) = q.shape, k.shape[1:3]
    out = torch.zeros(b, hq, n, dtype=torch.float64)
    for row in range(b):
        for head in range(hq):
            for i in range(m):
                slots = [s for s in range(n) if seen(row, head * h // hq, i, s)]
                if slots:
                    logits = k[row, head * h // hq, slots].double() @ q[row, head, i].double()
                    out[row, head, slots] += (logits * scale).softmax(0)
    return out


def causal(m, n, pads):
    """Query i stands at slot n - m + i; padding neither asks nor answers."""
    return lambda row, _, i, slot: pads[row] <= slot <= n - m + i


@st.composite
def cases(draw, most=11):
    b, h, g = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    n, d = draw(st.integers(1, most)), draw(st.integers(1, 5))
    m = draw(st.integers(1, n))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    q = 2 * torch.randn(b, h * g, m, d, generator=generator)
    k = 2 * torch.randn(b, h, n, d, generator=generator)
    return q, k, generator


@lean
@given(case=cases(), data=st.data())
def test_causal_sums_are_those_of_the_whole_matrix_for_any_padding(case, data):
    q, k, _ = case
    b, m, n = q.shape[0], q.shape[2], k.shape[2]
    pads = data.draw(st.lists(st.integers(0, n), min_size=b, max_size=b))
    ours = column_sums(q, k, 0.5, None, pads)
    unpadded = column_sums(q, k, 0.5)
    assert_close(ours.double(), literal(q, k, 0.5, causal(m, n, pads)), rtol=1e-5, atol=1e-6)
    assert_close(unpadded.double(), literal(q, k, 0.5, causal(m, n, [0] * b)), rtol=1e-5, atol=1e-6)


@lean
@given(case=cases(), data=st.data())
def test_masked_sums_are_those_of_the_whole_matrix_even_of_queries_that_see_nothing(case, data):
    q, k, generator = case
    b, h, m, n = q.shape[0], k.shape[1], q.shape[2], k.shape[2]
    heads, density = data.draw(st.sampled_from([1, h])), data.draw(st.sampled_from([0.2, 0.6, 1.0]))
    mask = torch.rand(b, heads, m, n, generator=generator) < density
    ours = column_sums(q, k, 0.5, mask)
    expected = literal(q, k, 0.5, lambda row, head, i, s: mask[row, head if heads > 1 else 0, i, s])
    assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)


def whole_matrix(q, k, scale, seen):
    """``seen`` [b, 1 or h, m, n]; every query sees something or is left out."""
    g = q.shape[1] // k.shape[1]
    logits = scale * q.double() @ k.double().repeat_interleave(g, 1).transpose(2, 3)
    seen = seen.expand(-1, k.shape[1], -1, -1).repeat_interleave(g, 1)
    weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights.masked_fill(~seen.any(-1, keepdim=True), 0.0).sum(2)


# long enough for several blocks of queries, wide enough for several blocks of heads
LONG = [(1, 1, 300, 300), (2, 3, 257, 300), (2, 2, 129, 600), (1, 2, 256, 256), (8, 8, 300, 300)]


@pytest.mark.parametrize(("h", "g", "m", "n"), LONG)
def test_long_prompts_and_many_heads_add_up_as_the_whole_matrix_does(h, g, m, n):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, h * g, m, 4, generator=generator)
    k = torch.randn(2, h, n, 4, generator=generator)
    pads = [0, 200]
    slots, queries = torch.arange(n), torch.arange(n - m, n)[:, None]
    real = (slots >= torch.tensor(pads)[:, None])[:, None, None]
    seen = real & (slots <= queries)
    expected = whole_matrix(q, k, 0.5, seen)
    assert_close(column_sums(q, k, 0.5, None, pads).double(), expected, rtol=1e-4, atol=1e-5)
    own = seen & (torch.rand(2, h, m, n, generator=generator) < 0.8)
    expected = whole_matrix(q, k, 0.5, own)
    assert_close(column_sums(q, k, 0.5, own).double(), expected, rtol=1e-4, atol=1e-5)


def test_a_mask_with_padding_agrees_with_the_causal_mask_it_spells_out():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 6, 3, generator=generator)
    k = torch.randn(2, 2, 6, 3, generator=generator)
    seen = causal(6, 6, [0, 2])
    mask = torch.tensor(
        [[[[seen(r, 0, i, s) for s in range(6)] for i in range(6)]] for r in (0, 1)]
    )
    expected = column_sums(q, k, 0.5, None, [0, 2])
    assert_close(column_sums(q, k, 0.5, mask), expected)
    assert_close(column_sums(q, k, 0.5, mask, [0, 2]), expected)


def test_every_query_pays_one_in_all():
    q, k = torch.randn(2, 4, 300, 8), torch.randn(2, 2, 300, 8)
    sums = column_sums(q, k, 0.35, None, [0, 120]).sum(-1)
    assert_close(sums, torch.tensor([[300.0] * 4, [180.0] * 4]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    q = (4 * torch.randn(1, 4, 9, 16, generator=generator)).to(dtype)
    k = (4 * torch.randn(1, 2, 9, 16, generator=generator)).to(dtype)
    ours = column_sums(q, k, 0.25)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, column_sums(q.float(), k.float(), 0.25))
    assert_close(ours.double(), literal(q, k, 0.25, causal(9, 9, [0])), rtol=1e-4, atol=1e-5)


@lean
@given(case=cases(), data=st.data())
def test_attention_with_sums_is_the_attention_and_the_sums(case, data):
    """Of padding the output is zero."""
    q, k, generator = case
    (b, hq, m, _), (h, n) = q.shape, k.shape[1:3]
    pads = data.draw(st.lists(st.integers(0, n), min_size=b, max_size=b))
    v = torch.randn(b, h, n, 3, generator=generator)
    out, sums = attention_with_sums(q, k, v, 0.5, pads)
    assert torch.equal(sums, column_sums(q, k, 0.5, None, pads))
    for row in range(b):
        for head in range(hq):
            for i in range(m):
                end, of = n - m + i + 1, head * h // hq
                logits = k[row, of, pads[row] : end].double() @ q[row, head, i].double()
                expected = (0.5 * logits).softmax(0) @ v[row, of, pads[row] : end].double()
                assert_close(out[row, head, i].double(), expected, rtol=1e-5, atol=1e-5)


def test_attention_with_sums_is_that_of_sdpa_over_several_blocks():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 300, 16), torch.randn(2, 2, 300, 16), torch.randn(2, 2, 300, 16)
    out, sums = attention_with_sums(q, k, v, 0.25)
    stock = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    assert_close(out, stock, rtol=1e-5, atol=1e-5)
    assert_close(sums.sum(-1), torch.full((2, 6), 300.0))


def matrix(q, k, scale, n, pads):
    """What every query of a causal attention pays."""
    (m, slots), real = (
        (q.shape[2], k.shape[2]),
        torch.arange(k.shape[2]) >= torch.tensor(pads)[:, None],
    )
    visible = real[:, None, None] & torch.ones(m, slots, dtype=torch.bool).tril(slots - m)
    return window_attention(q.double(), k.double(), visible, scale, n)


@pytest.mark.parametrize(("h", "g", "m", "n"), LONG)
def test_maxima_come_beside_the_same_attention(h, g, m, n):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, h * g, m, 4, generator=generator)
    k, v = torch.randn(2, 2, h, n, 4, generator=generator)
    out, most = attention_with_maxima(q, k, v, 0.5, [0, 200])
    assert torch.equal(out, attention_with_sums(q, k, v, 0.5, [0, 200])[0])
    assert_close(most, matrix(q, k, 0.5, 0.0, [0, 200]).amax((2, 3)), rtol=1e-4, atol=1e-6)


def counted_literally(q, k, counts, scale, n, pads):
    """From the whole matrix of the window's weights."""
    paid = matrix(q, k, scale, n, pads)
    return torch.einsum("bcgw,bhgwn->bhcn", counts, paid)


@lean
@given(case=cases(), data=st.data(), n=st.sampled_from([0.0, 1.5]), c=st.integers(1, 3))
def test_counted_sums_count_each_query_as_told_beside_the_same_attention(case, data, n, c):
    q, k, generator = case
    (b, hq, m, _), (h, slots) = q.shape, k.shape[1:3]
    pads = data.draw(st.lists(st.integers(0, slots), min_size=b, max_size=b))
    v = torch.randn(b, h, slots, 3, generator=generator)
    counts = torch.randn(b, c, hq // h, m, generator=generator)
    out, sums = attention_with_counted_sums(q, k, v, counts, 0.5, n, pads)
    assert torch.equal(out, attention_with_sums(q, k, v, 0.5, pads)[0])
    assert_close(sums, counted_literally(q, k, counts, 0.5, n, pads), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("h", "g", "m", "n"), LONG)
@pytest.mark.parametrize("of", [0.0, 1.0])
def test_counted_sums_of_several_blocks(h, g, m, n, of):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, h * g, m, 4, generator=generator)
    k, v = torch.randn(2, 2, h, n, 4, generator=generator)
    counts, pads = torch.rand(2, 2, g, m, generator=generator), [0, 200]
    out, sums = attention_with_counted_sums(q, k, v, counts, 0.5, of, pads)
    assert torch.equal(out, attention_with_sums(q, k, v, 0.5, pads)[0])
    assert_close(sums, counted_literally(q, k, counts, 0.5, of, pads), rtol=1e-4, atol=1e-4)


def test_counted_sums_are_a_softmax_n_also_where_a_querys_own_slot_has_no_weight():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, 5, 8, generator=generator)
    k, v = torch.randn(2, 2, 2, 9, 8, generator=generator)
    k[1, 0, -2] = -60 * q[1, 1, 3]  # the slot of that query
    counts = torch.rand(2, 1, 2, 5, generator=generator)
    _, sums = attention_with_counted_sums(q, k, v, counts, 0.3, 1.0)
    assert_close(sums, counted_literally(q, k, counts, 0.3, 1.0, [0, 0]), rtol=1e-4, atol=1e-6)
