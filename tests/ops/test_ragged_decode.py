"""One step's attention over heads of different lengths, against one softmax per head."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.testing import assert_close

from foveate.ops import ragged_decode as flash
from foveate.ops.ragged_decode import ragged_decode
from tests.core.lean import lean


def literal(q, bodies, tail_k, tail_v, scale, n=0.0):
    """``bodies[row][head]`` is (k, v); query head i reads KV head i // g."""
    b, hq = q.shape[:2]
    g = hq // tail_k.shape[1]
    out = torch.zeros(b, hq, 1, tail_v.shape[3], dtype=torch.float64)
    for row in range(b):
        for head in range(hq):
            k, v = bodies[row][head // g]
            k = torch.cat([k, tail_k[row, head // g]]).double()
            v = torch.cat([v, tail_v[row, head // g]]).double()
            logits = (scale * (k @ q[row, head, 0].double())).exp()
            weights = logits / (n + logits.sum() or 1.0)
            out[row, head, 0] = weights @ v
    return out


def case(lengths, t, g=2, d=4, e=3, dtype=torch.float32, seed=0):
    """``lengths`` [b][h]."""
    generator = torch.Generator().manual_seed(seed)
    b, h = len(lengths), len(lengths[0])

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(dtype)

    bodies = [[(normal(n, d), normal(n, e)) for n in row] for row in lengths]
    flat = [torch.cat([body[i] for row in bodies for body in row]) for i in (0, 1)]
    q, tail_k, tail_v = normal(b, h * g, 1, d), normal(b, h, t, d), normal(b, h, t, e)
    return bodies, (q, *flat, [n for row in lengths for n in row], tail_k, tail_v)


@st.composite
def ragged(draw):
    b, h = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    row = st.lists(st.integers(0, 9), min_size=h, max_size=h)
    return draw(st.lists(row, min_size=b, max_size=b))


@lean
@given(
    lengths=ragged(),
    t=st.integers(1, 5),
    g=st.integers(1, 3),
    d=st.integers(1, 5),
    e=st.integers(1, 5) | st.none(),  # as wide as keys
    n=st.sampled_from([0.0, 1.5]),
    seed=st.integers(0, 99),
)
@example(lengths=[[0, 0]], t=1, g=1, d=2, e=2, n=0.0, seed=0)
def test_it_is_one_softmax_per_head_over_body_and_tail(lengths, t, g, d, e, n, seed):
    bodies, arguments = case(lengths, t, g, d, e or d, seed=seed)
    ours = ragged_decode(*arguments, 0.5, n)
    q, *_, tail_k, tail_v = arguments
    expected = literal(q, bodies, tail_k, tail_v, 0.5, n)
    assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("e", [3, 4])
@pytest.mark.parametrize("lengths", [[[3, 1], [5, 2]], [[0, 0], [5, 0]]])
def test_the_tail_may_be_empty_and_so_may_heads(lengths, e):
    bodies, arguments = case(lengths, t=0, e=e)
    ours = ragged_decode(*arguments, 0.5, 1.0)
    q, *_, tail_k, tail_v = arguments
    expected = literal(q, bodies, tail_k, tail_v, 0.5, 1.0)
    assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [0.0, 2.0])
@pytest.mark.parametrize("g", [1, 3, 4])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lengths", [[[700, 5], [0, 513]], [[4100, 0]]])
def test_flash_attention_gives_the_same(lengths, threads, g, n, monkeypatch):
    """Of more pairs than its blocks have, with query heads apart and as one head's queries."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    bodies, (q, flat_k, *rest) = case(lengths, t=7, g=g, d=8, e=8)
    columns_first = flat_k.T.contiguous().T
    ours = flash.flash_decode(q, columns_first, *rest, 0.35, n)
    expected = literal(q, bodies, *rest[2:], 0.35, n)
    assert_close(ours.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_that_share_a_head_give_the_same(threads, dtype, monkeypatch):
    """Lengths that can be shared out, that leave some pairs over, and that are too few to."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(flash, "FEW", 0)
    monkeypatch.setattr(flash, "MANY", 0)
    lengths, parts = [[600, 601], [5, 1100]], []
    attended = flash._Bodies._in_parts
    monkeypatch.setattr(flash._Bodies, "_in_parts", lambda *a: parts.append(a) or attended(*a))
    bodies, arguments = case(lengths, t=7, g=3, d=8, e=8, dtype=dtype)
    ours = flash.flash_decode(*arguments, 0.35, 2.0)
    q, *_, tail_k, tail_v = arguments
    expected = literal(q, bodies, tail_k, tail_v, 0.35, 2.0)
    assert len(parts) == 1
    assert ours.dtype == dtype
    assert_close(ours.double(), expected, rtol=1e-5, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("e", [12, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_comes_back_in_its_own_type_and_close(dtype, e):
    bodies, arguments = case([[30, 4], [12, 9]], t=3, d=16, e=e, dtype=dtype)
    ours = ragged_decode(*arguments, 0.25)
    assert ours.dtype == dtype
    q, *_, tail_k, tail_v = arguments
    expected = literal(q, bodies, tail_k, tail_v, 0.25)
    assert_close(ours.double(), expected, rtol=0.0, atol=6 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("e", [3, 4])
def test_gradients_are_those_of_the_softmax(e):
    """A model's forward pass outside of torch.no_grad, as a user may run it."""
    bodies, (q, *rest) = case([[3, 1]], t=2, e=e)
    ours, theirs = q.clone().requires_grad_(), q.clone().requires_grad_()
    out = ragged_decode(ours, *rest, 0.5)
    out.sum().backward()
    parts = [
        [torch.cat(pair) for pair in zip(body, (rest[3][0, i], rest[4][0, i]), strict=True)]
        for i, body in enumerate(bodies[0])
    ]
    expected = torch.cat(
        [
            (0.5 * theirs[0, 2 * i : 2 * i + 2, 0] @ k.T).softmax(-1) @ v
            for i, (k, v) in enumerate(parts)
        ]
    )
    expected.sum().backward()
    assert_close(out[0, :, 0], expected)
    assert_close(ours.grad, theirs.grad)
