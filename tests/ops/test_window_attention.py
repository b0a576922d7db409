"""Attention of the last queries, against a softmax written out number by number."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from foveate.ops.window_attention import (
    from_first_hidden,
    window_attention,
    window_sums,
)
from tests.core.lean import lean


def literal(q, k, visible, scale):
    """[b][h][g][w][n], query by query; a query that sees nothing pays nothing."""
    (b, hq, w, _), (h, n) = q.shape, k.shape[1:3]
    q, k = q.double().tolist(), k.double().tolist()
    out = torch.zeros(b, h, hq // h, w, n, dtype=torch.float64)
    for row in range(b):
        for head in range(hq):
            group, member = divmod(head, hq // h)
            for i in range(w):
                seen = visible[row][group if len(visible[row]) > 1 else 0][i]
                products = {}
                for slot in range(n):
                    if seen[slot]:
                        pairs = zip(q[row][head][i], k[row][group][slot], strict=True)
                        products[slot] = math.exp(scale * sum(x * y for x, y in pairs))
                for slot, product in products.items():
                    out[row, group, member, i, slot] = product / sum(products.values())
    return out


@st.composite
def cases(draw):
    b, h, g = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    w, n, d = draw(st.integers(1, 4)), draw(st.integers(1, 7)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    q = torch.randn(b, h * g, w, d, generator=generator)
    k = torch.randn(b, h, n, d, generator=generator)
    heads = draw(st.sampled_from([1, h]))
    density = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    visible = torch.rand(b, heads, w, n, generator=generator) < density
    return q, k, visible, draw(st.sampled_from([1.0, 0.5, 0.125]))


@lean
@given(case=cases())
def test_it_is_the_softmax_over_the_slots_that_each_query_sees(case):
    q, k, visible, scale = case
    ours = window_attention(q, k, visible, scale)
    assert_close(ours.double(), literal(q, k, visible.tolist(), scale), rtol=1e-5, atol=1e-7)


@lean
@given(case=cases(), last=st.integers(0, 7))
def test_a_mask_of_the_last_slots_says_that_those_before_are_seen(case, last):
    q, k, visible, scale = case
    first = max(0, k.shape[2] - last)
    whole = visible.clone()
    whole[..., :first] = True
    ours = window_attention(q, k, visible[..., first:], scale)
    assert_close(ours.double(), literal(q, k, whole.tolist(), scale), rtol=1e-5, atol=1e-7)


@lean
@given(case=cases())
def test_a_mask_without_the_first_slots_that_all_see_says_the_same(case):
    q, k, visible, scale = case
    last = from_first_hidden(visible)
    hidden = [slot for slot in range(k.shape[2]) if not visible[..., slot].all()]
    assert last.shape[-1] == (k.shape[2] - hidden[0] if hidden else 0)
    assert torch.equal(window_attention(q, k, last, scale), window_attention(q, k, visible, scale))


@lean
@given(case=cases(), n=st.sampled_from([0.0, 1.5]), c=st.integers(1, 3))
def test_sums_count_each_query_as_they_are_told(case, n, c):
    q, k, visible, scale = case
    counts = torch.rand(q.shape[0], c, q.shape[1] // k.shape[1], q.shape[2])
    paid = window_attention(q, k, visible, scale, n)
    expected = torch.einsum("bcgw,bhgwn->bhcn", counts, paid)
    assert_close(window_sums(q, k, visible, counts, scale, n), expected)


def test_a_query_that_sees_nothing_pays_nothing():
    visible = torch.tensor([[[[True, True, False], [False, False, False]]]])
    ours = window_attention(torch.ones(1, 2, 2, 4), torch.ones(1, 1, 3, 4), visible, 0.5)
    assert ours[0, 0, :, 0].tolist() == [[0.5, 0.5, 0.0]] * 2
    assert ours[0, 0, :, 1].tolist() == [[0.0, 0.0, 0.0]] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    """Exactly what the same numbers give in float32, so no logit was ever rounded."""
    generator = torch.Generator().manual_seed(0)
    q = (8 * torch.randn(1, 4, 3, 16, generator=generator)).to(dtype)
    k = (8 * torch.randn(1, 2, 9, 16, generator=generator)).to(dtype)
    visible = torch.ones(1, 1, 3, 9, dtype=torch.bool)
    ours = window_attention(q, k, visible, 0.25)
    assert ours.dtype == torch.float32
    assert torch.equal(ours, window_attention(q.float(), k.float(), visible, 0.25))
    assert_close(ours.double(), literal(q, k, visible.tolist(), 0.25), rtol=1e-4, atol=1e-6)


def test_large_logits_do_not_overflow():
    q, k = torch.full((1, 1, 1, 2), 1e4), torch.full((1, 1, 3, 2), 1e4)
    ours = window_attention(q, k, torch.ones(1, 1, 1, 3, dtype=torch.bool), 1.0)
    assert_close(ours, torch.full((1, 1, 1, 1, 3), 1 / 3))


def test_the_inputs_are_left_as_they_are():
    q, k = torch.randn(1, 1, 2, 3), torch.randn(1, 1, 4, 3)
    visible = torch.rand(1, 1, 2, 4) < 0.5
    copies = q.clone(), k.clone(), visible.clone()
    window_attention(q, k, visible, 0.5)
    assert all(torch.equal(a, b) for a, b in zip((q, k, visible), copies, strict=True))
