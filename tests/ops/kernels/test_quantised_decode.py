"""One decoding step over codes as they are held."""

import pytest
import torch
from torch.testing import assert_close

from foveate.cache.pairs import CodeLayout, QuantisedPairs, store
from foveate.ops.quantised_decode import quantised_decode
from foveate.ops.ragged_decode import ragged_decode
from tests.on_device import DEVICE

from .inputs import KINDS, Draw


def held(draw, bits, group, residual, shares, d, e, later=3):
    """[b, h] heads that keep these shares of 90 pairs, and ``later`` pairs more."""
    shares = torch.tensor(shares, device=DEVICE)
    b, h = shares.shape
    kept = draw.chance(shares[:, :, None], b, h, 90)
    k, v = draw.tokens_first(b, h, 90, d), draw.tokens_first(b, h, 90, e)
    columns = torch.arange(90, device=DEVICE).expand(b, h, 90)
    pairs = QuantisedPairs.of(store(k, v, columns, kept, 90), CodeLayout(bits, group), residual)
    if later:
        pairs.append(draw.normal(b, h, later, d), draw.normal(b, h, later, e))
    return pairs


def check(draw, pairs, g=3, n=0.0, scale=0.3):
    b, h, d = *pairs.counts.shape, pairs.body.k_least.shape[1]
    q = draw.tokens_first(b, h * g, 1, d)
    ours = quantised_decode(q, *pairs.parts, scale, n, impl="triton")
    opened = quantised_decode(q, *pairs.parts, scale, n)
    assert ours.dtype == opened.dtype == draw.dtype
    rounding = 1e-5 if draw.dtype == torch.float32 else 16 * torch.finfo(draw.dtype).eps
    assert_close(ours, opened, rtol=0.0, atol=rounding)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize(("dtype", "d"), KINDS, ids=str)
def test_it_is_the_references_for_every_type_head_size_and_number_of_bits(dtype, d, bits):
    draw = Draw(dtype)
    pairs = held(draw, bits, 32, 5, [[0.9, 0.2], [0.0, 1.0]], d, d // 2)
    check(draw, pairs, n=1.5, scale=d**-0.5)


@pytest.mark.parametrize("shares", [[[1.0, 1.0]], [[0.7, 0.1]]], ids=["dense", "ragged"])
@pytest.mark.parametrize(("group", "residual", "later"), [(1, 0, 0), (7, 40, 12), (16, 200, 1)])
def test_groups_of_any_size_and_bodies_that_are_empty(shares, group, residual, later):
    """Of odd widths, so that a pair's last byte is not full; then with pairs gone from groups."""
    draw = Draw(seed=1)
    pairs = held(draw, 2, group, residual, shares, 21, 19, later)
    check(draw, pairs)
    kept = pairs.columns % 3 > 0
    check(draw, pairs.only(kept & (pairs.columns >= 0)), g=1)


def test_the_reference_is_ragged_decoding_of_what_is_opened():
    draw = Draw(seed=2)
    pairs = held(draw, 4, 16, 10, [[0.9, 0.3], [0.5, 0.0]], 24, 16)
    q = draw.normal(2, 4, 1, 24)
    expected = ragged_decode(q, *pairs.opened().parts, 0.3, 1.0)
    assert torch.equal(quantised_decode(q, *pairs.parts, 0.3, 1.0), expected)
