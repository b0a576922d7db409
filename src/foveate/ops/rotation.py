"""Rotary positions: pairs of channels are rotated by a token's position times a frequency."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor


class Rotation(NamedTuple):
    """First and second channel of each pair, and its frequency; without pairs, no rotation."""

    first: Int[Tensor, "r"]
    second: Int[Tensor, "r"]
    frequencies: Float[Tensor, "r"]

    def to(self, device: torch.device) -> Rotation:
        """Copy the rotation to another device."""
        return Rotation(*(t.to(device) for t in self))


def no_rotation(device: torch.device) -> Rotation:
    """Return a rotation of no channels."""
    return halves(torch.zeros(0, dtype=torch.float32, device=device))


def halves(frequencies: Float[Tensor, "r"], start: int = 0) -> Rotation:
    """Return the rotation of channels i and r + i, from channel ``start`` on."""
    first = start + torch.arange(len(frequencies), device=frequencies.device)
    return Rotation(first, first + len(frequencies), frequencies)


def neighbours(frequencies: Float[Tensor, "r"], start: int = 0) -> Rotation:
    """Return the rotation of channels 2 i and 2 i + 1, from channel ``start`` on."""
    first = start + 2 * torch.arange(len(frequencies), device=frequencies.device)
    return Rotation(first, first + 1, frequencies)


def turned(
    x: Float[Tensor, "*x m d"], positions: Num[Tensor, "*y m"], rotation: Rotation
) -> Float[Tensor, "*x m d"]:
    """Rotate vectors by their positions, in double precision; negative ones rotate back."""
    return turned_by(x, positions.double()[..., None] * rotation.frequencies.double(), rotation)


def turned_by(
    x: Float[Tensor, "*x m d"], angles: Float[Tensor, "*y m r"], rotation: Rotation
) -> Float[Tensor, "*x m d"]:
    """Rotate vectors by an angle for each pair of channels, in double precision."""
    cos, sin = angles.cos(), angles.sin()
    out = x.double().clone()
    a, b = out[..., rotation.first], out[..., rotation.second]
    out[..., rotation.first] = a * cos - b * sin
    out[..., rotation.second] = a * sin + b * cos
    return out


def mean_rotation(
    start: Int[Tensor, "b"], positions: int, d: int, rotation: Rotation
) -> Float[Tensor, "b d d"]:
    """Return the mean of the rotation matrices of ``positions`` positions from ``start`` on.

    The matrices rotate ``d`` channels, in double precision.
    """
    all_positions = start[:, None] + torch.arange(positions, device=start.device)
    eye = torch.eye(d, dtype=torch.float64, device=start.device)
    angles = all_positions.double()[..., None] * rotation.frequencies.double()
    cos, sin = angles.cos().mean(1), angles.sin().mean(1)
    first, second = rotation.first, rotation.second
    matrix = eye.repeat(len(start), 1, 1)
    matrix[:, first, first], matrix[:, second, second] = cos, cos
    matrix[:, first, second], matrix[:, second, first] = -sin, sin
    return matrix
