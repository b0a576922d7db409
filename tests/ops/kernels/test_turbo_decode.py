"""One decoding step over TurboQuant's codes as they are stored."""

import pytest
import torch
from torch.testing import assert_close

from foveate.cache.pairs import QuantisedPairs, store
from foveate.methods.turboquant import TurboLayout
from foveate.ops.turbo_decode import turbo_decode
from tests.on_device import DEVICE

from .inputs import KINDS, Draw


def stored(draw, layout, residual, shares, d, e, later=3):
    """[b, h] heads that keep these shares of 70 pairs, and ``later`` pairs more."""
    shares = torch.tensor(shares, device=DEVICE)
    b, h = shares.shape
    kept = draw.chance(shares[:, :, None], b, h, 70)
    k, v = draw.tokens_first(b, h, 70, d), draw.tokens_first(b, h, 70, e)
    columns = torch.arange(70, device=DEVICE).expand(b, h, 70)
    pairs = QuantisedPairs.of(store(k, v, columns, kept, 70), layout, residual)
    pairs.append(draw.normal(b, h, later, d), draw.normal(b, h, later, e))
    return pairs


def check(draw, pairs, d, n=0.0, scale=0.2):
    b, h = pairs.counts.shape
    q = draw.tokens_first(b, h * 3, 1, d)
    ours = turbo_decode(q, *pairs.parts, scale, n, impl="triton")
    reference = turbo_decode(q, *pairs.parts, scale, n)
    assert ours.dtype == reference.dtype == draw.dtype
    rounding = 1e-5 if draw.dtype == torch.float32 else 16 * torch.finfo(draw.dtype).eps
    assert_close(ours, reference, rtol=0.0, atol=rounding)


@pytest.mark.parametrize("layout", [TurboLayout(4), TurboLayout(3, sketch=True)], ids=str)
@pytest.mark.parametrize(("dtype", "d"), KINDS[1::3], ids=str)
def test_it_is_the_references_for_every_type_and_head_size(dtype, d, layout):
    draw = Draw(dtype)
    check(draw, stored(draw, layout, 5, [[0.9, 0.2], [0.0, 1.0]], d, d // 2), d, n=1.5)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
@pytest.mark.parametrize("sketch", [False, True])
def test_every_number_of_bits_and_odd_widths(bits, sketch):
    """A pair's last byte is not full, and numbers of 3 bits begin in one byte, end in another."""
    if bits == 1 and sketch:
        pytest.skip("a sketch needs 2 bits")
    draw = Draw(seed=1)
    pairs = stored(draw, TurboLayout(bits, sketch), 0, [[0.7, 0.1]], 21, 19)
    check(draw, pairs, 21)
    kept = pairs.columns % 3 > 0
    check(draw, pairs.only(kept & (pairs.columns >= 0)), 21)
