"""Affine codes in plain torch: x is decoded as minimum + code * step, several codes per byte."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

BITS = (8, 4, 2, 1)


def extremes(
    x: Float[Tensor, "f c"], group: Int[Tensor, "f"], groups: int
) -> tuple[Float[Tensor, "G c"], Float[Tensor, "G c"]]:
    """Return each group's minimum and maximum per column; no group may be empty."""
    index = group[:, None].expand_as(x)
    empty = x.new_empty(groups, x.shape[1])
    least = empty.scatter_reduce(0, index, x, "amin", include_self=False)
    return least, empty.scatter_reduce(0, index, x, "amax", include_self=False)


def step_of(least: Float[Tensor, "..."], greatest: Float[Tensor, "..."], bits: int) -> Tensor:
    """Return the step between two codes, in the dtype of ``least``; 1 if all numbers are equal."""
    step: Tensor = ((greatest.float() - least.float()) / (2**bits - 1)).to(least.dtype)
    return step.masked_fill(step == 0, 1.0)  # encode() divides by it


def encode(
    x: Float[Tensor, "f c"], least: Float[Tensor, "f c"], step: Float[Tensor, "f c"], bits: int
) -> UInt8[Tensor, "f w"]:
    """Encode each column as codes of ``bits`` bits, ``w = ceil(c * bits / 8)`` bytes per row.

    The first column is in the lowest bits of the first byte.
    """
    codes = ((x.float() - least.float()) / step.float()).round().clamp(0, 2**bits - 1)
    per = 8 // bits
    # pad to complete bytes; decode() removes the padding
    codes = F.pad(codes.to(torch.uint8), (0, -x.shape[1] % per))
    parts = codes.view(len(x), codes.shape[1] // per, per) << _shifts(bits, x.device)
    packed: Tensor = parts.sum(-1, dtype=torch.uint8)
    return packed


def decode(
    codes: UInt8[Tensor, "f w"], least: Float[Tensor, "f c"], step: Float[Tensor, "f c"], bits: int
) -> Float[Tensor, "f c"]:
    """Decode to within half a step, in the dtype of ``least``."""
    parts = (codes[..., None] >> _shifts(bits, codes.device)) & (2**bits - 1)
    numbers = parts.flatten(1)[:, : least.shape[1]]
    x: Tensor = least.float() + numbers.float() * step.float()
    return x.to(least.dtype)


def _shifts(bits: int, device: torch.device) -> UInt8[Tensor, "p"]:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)
