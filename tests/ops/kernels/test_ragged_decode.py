"""One decoding step over heads of different lengths, in chunks."""

from itertools import accumulate

import pytest
import torch
from torch.testing import assert_close

from foveate.ops.kernels import ragged_decode as triton
from foveate.ops.ragged_decode import ragged_decode
from tests.on_device import DEVICE

from .inputs import KINDS, Draw

LENGTHS = [0, 70, 230, 5]


def inputs(draw, lengths=LENGTHS, b=2, h=2, g=3, t=7, d=16, e=16):
    flat = (draw.channels_first(1, 1, sum(lengths), width)[0, 0] for width in (d, e))
    q, tail_k = draw.tokens_first(b, h * g, 1, d), draw.tokens_first(b, h, t, d)
    return q, *flat, lengths, tail_k, draw.tokens_first(b, h, t, e)


def raised(arguments):
    return [x.float() if isinstance(x, torch.Tensor) else x for x in arguments]


@pytest.mark.parametrize("n", [0.0, 1.5])
@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_it_is_the_references_for_every_type_and_head_size(dtype, d, n):
    arguments = inputs(Draw(dtype), d=d, e=max(16, d // 2))
    ours = ragged_decode(*arguments, d**-0.5, n, impl="triton")
    assert ours.dtype == dtype
    expected = ragged_decode(*raised(arguments), d**-0.5, n)
    rounding = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert_close(ours.float(), expected, rtol=0.0, atol=rounding)


@pytest.mark.parametrize("t", [0, 1, 100])
@pytest.mark.parametrize("lengths", [[0, 0], [1, 0], [300, 2]])
def test_heads_and_tails_may_be_empty_or_long(lengths, t):
    arguments = inputs(Draw(seed=1), lengths, b=1, g=1, t=t)
    ours = ragged_decode(*arguments, 0.5, 1.0, impl="triton")
    assert_close(ours, ragged_decode(*arguments, 0.5, 1.0), rtol=0.0, atol=1e-5)


def test_many_query_heads_share_a_kv_head():
    arguments = inputs(Draw(seed=2), [40, 90], b=1, g=20)
    ours = ragged_decode(*arguments, 0.5, impl="triton")
    assert_close(ours, ragged_decode(*arguments, 0.5), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("impl", ["reference", "triton"])
def test_only_the_part_of_the_tail_that_counts_is_read(impl):
    *body, tail_k, tail_v = inputs(Draw(seed=3), t=40)
    tail_k[:, :, 9:], tail_v[:, :, 9:] = torch.nan, torch.nan
    expected = ragged_decode(*body, tail_k[:, :, :9], tail_v[:, :, :9], 0.5, 1.0)
    counted = torch.tensor([9], device=DEVICE)
    ours = ragged_decode(*body, tail_k, tail_v, 0.5, 1.0, tail_length=counted, impl=impl)
    assert_close(ours, expected, rtol=0.0, atol=1e-5)


def test_launches_depend_on_shapes_alone_if_lengths_are_on_the_device(monkeypatch):
    """As a CUDA graph needs it: lengths differ, and every number handed over is the same."""
    launches, run = [], triton.run

    def recorded(kernel, programs, like, *arguments, **settings):
        flat = [y for x in arguments for y in (x if isinstance(x, tuple) else (x,))]
        numbers = [x for x in flat if not isinstance(x, torch.Tensor)]
        launches[-1].append((programs, numbers, settings))
        run(kernel, programs, like, *arguments, **settings)

    monkeypatch.setattr(triton, "run", recorded)
    for lengths, counted in (([0, 70, 230, 5], 3), ([200, 5, 0, 100], 40)):
        launches.append([])
        arguments = inputs(Draw(seed=4), lengths, t=40)
        starts = torch.tensor([0, *accumulate(lengths)], device=DEVICE)
        ours = ragged_decode(
            *arguments,
            0.5,
            starts=starts,
            longest=230,
            tail_length=torch.tensor([counted], device=DEVICE),
            impl="triton",
        )
        *body, tail_k, tail_v = arguments
        expected = ragged_decode(*body, tail_k[:, :, :counted], tail_v[:, :, :counted], 0.5)
        assert_close(ours, expected, rtol=0.0, atol=1e-5)
    assert launches[0] == launches[1]


def test_it_works_while_gradients_are_recorded_and_carries_none():
    q, *rest = inputs(Draw(seed=6))
    ours = ragged_decode(q.requires_grad_(), *rest, 0.5, impl="triton")
    assert not ours.requires_grad
    assert_close(ours, ragged_decode(q, *rest, 0.5).detach(), rtol=0.0, atol=1e-5)


def test_logits_of_any_size_are_no_trouble():
    draw = Draw(seed=5)
    q, k, v, lengths, tail_k, tail_v = inputs(draw)
    for sign in (1, -1):  # far above and far below log n
        big = (100 * q.abs(), 100 * sign * k.abs(), v, lengths, 100 * sign * tail_k.abs(), tail_v)
        ours = ragged_decode(*big, 1.0, 2.0, impl="triton")
        assert_close(ours, ragged_decode(*big, 1.0, 2.0), rtol=0.0, atol=1e-3)
