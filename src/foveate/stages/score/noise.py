"""Noise that depends on a seed and on positions alone: not on the batch, the padding, the chunks
of a prompt or the device.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_STEPS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # of splitmix64


def gumbel(seed: int, *coordinates: Int[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Standard Gumbel noise in float32, one draw for each combination of coordinates (they
    broadcast), by hashing them.
    """
    mixed: Tensor = torch.full_like(coordinates[0], _signed(seed * _STEPS[0]))
    for place in coordinates:
        mixed = _hash(mixed + place.long() * _signed(_STEPS[0]))
    uniform = ((_shifted(mixed, 11) >> 1).double() + 0.5) / 2**52
    return -(-uniform.log()).log().float()


def _hash(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """splitmix64's finaliser; int64 products wrap around."""
    x = (x ^ _shifted(x, 30)) * _signed(_STEPS[1])
    x = (x ^ _shifted(x, 27)) * _signed(_STEPS[2])
    return x ^ _shifted(x, 31)


def _shifted(x: Int[Tensor, "..."], bits: int) -> Int[Tensor, "..."]:
    """Shifts to the right and fills with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """A number modulo 2^64 as an int64."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
