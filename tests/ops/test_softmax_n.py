"""Softmax-n, against a softmax over one more logit, and attention over one more pair."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from foveate.ops.softmax_n import attention_n, softmax_n
from tests.core.lean import lean

NUMBERS = [0.0, 0.3, 1.0, 5.0]


def drawn(*shape, seed=0, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def literal(logits, n):
    """Eq. 7 in float64, with the highest exponent taken out."""
    logits = logits.double()
    high = logits.amax(-1, keepdim=True).clamp_min(0)
    powers = (logits - high).exp()
    return powers / (n * (-high).exp() + powers.sum(-1, keepdim=True))


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("n", NUMBERS)
def test_it_is_its_equation(n, scale):
    logits = drawn(3, 4, 9, scale=scale)
    assert_close(softmax_n(logits, n).double(), literal(logits, n), rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("n", [0.3, 1.0, 5.0])
def test_it_is_a_softmax_over_one_more_logit_that_is_left_out(n):
    logits = drawn(3, 4, 9, seed=1)
    more = torch.nn.functional.pad(logits, (0, 1), value=math.log(n))
    assert_close(softmax_n(logits, n), more.softmax(-1)[..., :-1])


def test_of_zero_it_is_the_softmax():
    logits = drawn(3, 9, seed=2)
    assert torch.equal(softmax_n(logits, 0.0), logits.softmax(-1))


def test_the_weights_add_up_to_less_the_larger_n_is():
    logits = drawn(20, 9, seed=3)
    sums = torch.stack([softmax_n(logits, n).sum(-1) for n in (0.0, 0.001, 0.3, 1.0, 5.0, 100.0)])
    assert bool((sums[1:] < sums[:-1] + 1e-6).all())
    assert bool((sums[-1] < 0.8).all())
    assert_close(sums[0], torch.ones(20))
    assert_close(sums[1], torch.ones(20), rtol=0, atol=1e-3)


@pytest.mark.parametrize("n", NUMBERS)
@pytest.mark.parametrize(
    "logits",
    [[1e4, 1e4, -1e4], [-1e4, -1e4 + 1, -1e4], [1e4, 0.0, -1e4], [-1e4] * 3, [1e4] * 3, [0.0] * 3],
)
def test_logits_of_any_size_are_safe(logits, n):
    found = softmax_n(torch.tensor(logits), n)
    assert bool(found.isfinite().all())
    expected = literal(torch.tensor(logits), n)
    if n == 0:  # nothing beside the logits counts, however low they are
        expected = torch.tensor(logits).double().softmax(-1)
    assert_close(found.double(), expected, rtol=1e-4, atol=1e-9)


def test_hidden_logits_get_nothing_and_cost_nothing():
    logits = torch.tensor([1.0, -math.inf, 2.0, -math.inf])
    found = softmax_n(logits, 1.0)
    assert found[[1, 3]].tolist() == [0.0, 0.0]
    assert_close(found[[0, 2]], softmax_n(torch.tensor([1.0, 2.0]), 1.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype):
    logits = drawn(4, 9, seed=4).to(dtype)
    assert softmax_n(logits, 1.0).dtype == torch.float32
    assert torch.equal(softmax_n(logits, 1.0), softmax_n(logits.float(), 1.0))


def attention_over_one_more_pair(q, k, v, scale, n, visible):
    """Query by query and slot by slot in float64, with the logit log n and a value of zeros."""
    (b, hq, m, _), (h, slots), e = q.shape, k.shape[1:3], v.shape[-1]
    out = torch.zeros(b, hq, m, e, dtype=torch.float64)
    for row in range(b):
        for head in range(hq):
            group = head // (hq // h)
            for i in range(m):
                mask = visible[row, group if visible.shape[1] > 1 else 0, i].tolist()
                seen = [j for j in range(slots) if mask[j]]
                if not seen:
                    continue
                logits = k[row, group, seen].double() @ q[row, head, i].double() * scale
                values = v[row, group, seen].double()
                if n:
                    logits = torch.cat([logits, torch.tensor([math.log(n)], dtype=torch.float64)])
                    values = torch.cat([values, torch.zeros(1, e, dtype=torch.float64)])
                out[row, head, i] = logits.softmax(0) @ values
    return out


@lean
@given(
    b=st.integers(1, 2),
    h=st.integers(1, 3),
    g=st.integers(1, 3),
    m=st.integers(1, 3),
    slots=st.integers(1, 7),
    n=st.sampled_from(NUMBERS),
    heads=st.booleans(),
    density=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_attention_is_that_over_one_more_pair_with_a_value_of_zeros(
    b, h, g, m, slots, n, heads, density, seed
):
    q, k = drawn(b, h * g, m, 4, seed=seed), drawn(b, h, slots, 4, seed=seed + 1)
    v = drawn(b, h, slots, 3, seed=seed + 2)
    visible = drawn(b, h if heads else 1, m, slots, seed=seed + 3).sigmoid() < density
    expected = attention_over_one_more_pair(q, k, v, 0.5, n, visible)
    found = attention_n(q, k, v, 0.5, n, visible)
    assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", NUMBERS)
def test_without_a_mask_every_query_sees_every_slot(n):
    q, k, v = drawn(2, 4, 3, 8), drawn(2, 2, 6, 8, seed=1), drawn(2, 2, 6, 8, seed=2)
    everything = torch.ones(2, 1, 3, 6, dtype=torch.bool)
    assert torch.equal(attention_n(q, k, v, 0.5, n), attention_n(q, k, v, 0.5, n, everything))


def test_of_zero_it_is_the_attention_of_torch():
    q, k, v = drawn(2, 4, 3, 8), drawn(2, 2, 6, 8, seed=1), drawn(2, 2, 6, 8, seed=2)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.5, enable_gqa=True)
    assert_close(attention_n(q, k, v, 0.5, 0.0), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_in_half_precision_stays_in_it_and_near_the_same_in_float32(dtype):
    q, k, v = (x.to(dtype) for x in (drawn(1, 4, 2, 16), drawn(1, 2, 9, 16), drawn(1, 2, 9, 16)))
    found = attention_n(q, k, v, 0.25, 1.0)
    assert found.dtype == dtype
    full = attention_n(q.float(), k.float(), v.float(), 0.25, 1.0)
    assert_close(found.float(), full, rtol=0.03, atol=0.03)
