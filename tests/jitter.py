"""Another CPU, pretended: noise on what linear layers give, on one side of a comparison.

CPUs round differently, and so do two ways to compute the same on one of them. Under
``FOVEATE_JITTER=1e-6`` every output of a linear layer is off by up to that share of itself, in
float32 and float64 (in half precision their own rounding is coarser). The noise is drawn from the
bits of the output, from ``FOVEATE_JITTER_SEED`` and from the side: what is equal to the bit stays
so, whatever the shape, the process or the order, and a comparison that has a tolerance computes one
side in `other_side`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

SHARE = float(os.environ.get("FOVEATE_JITTER") or 0)
SEED = int(os.environ.get("FOVEATE_JITTER_SEED") or 0)
WIDER = 100 * SHARE  # what becomes of it in a logit of the tiny models, with room

_side = 0
_stock = torch.nn.functional.linear


def install() -> None:
    """Puts the noise on every linear layer of this process, if the environment asks for any."""
    if SHARE:
        torch.nn.functional.linear = linear


@contextmanager
def other_side() -> Iterator[None]:
    """Inside, the noise is another: that of the other CPU."""
    global _side
    before, _side = _side, _side + 1
    try:
        yield
    finally:
        _side = before


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, with noise."""
    exact = _stock(input, weight, bias)
    if exact.dtype not in (torch.float32, torch.float64):
        return exact
    return exact * (1 + SHARE * noise(exact.detach(), 1_000_003 * SEED + 7_919 * _side))


def noise(values: Tensor, seed: int | Tensor) -> Tensor:
    """Between -1 and 1, from the bits of each value: what is equal gets the same, unless ``seed``,
    int32, tells it apart.
    """
    wide = values.dtype == torch.float64
    bits = values.contiguous().view(torch.int64 if wide else torch.int32)
    h = (bits ^ (bits >> 32)).int() if wide else bits
    h = h ^ seed
    for factor, shift in ((0x45D9F3B, 16), (0x119DE1F3, 15)):  # mixes all bits of a word
        h = (h ^ ((h >> shift) & 0xFFFF)) * factor
    return (h ^ ((h >> 16) & 0xFFFF)).to(values.dtype) * 2.0**-31
