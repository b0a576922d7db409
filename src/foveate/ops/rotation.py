"""Rotary positions: pairs of channels that are turned by a token's position times a frequency."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Num
from torch import Tensor


class Rotation(NamedTuple):
    """The first and the second channel of each pair, and its frequency; no pairs, no rotation."""

    first: Int[Tensor, "r"]
    second: Int[Tensor, "r"]
    frequencies: Float[Tensor, "r"]

    def to(self, device: torch.device) -> Rotation:
        """The same on another device."""
        return Rotation(*(t.to(device) for t in self))


def no_rotation(device: torch.device) -> Rotation:
    """Of no channels."""
    return halves(torch.zeros(0, dtype=torch.float32, device=device))


def halves(frequencies: Float[Tensor, "r"]) -> Rotation:
    """Channel i and channel r + i are a pair."""
    first = torch.arange(len(frequencies), device=frequencies.device)
    return Rotation(first, first + len(frequencies), frequencies)


def neighbours(frequencies: Float[Tensor, "r"]) -> Rotation:
    """Channel 2 i and channel 2 i + 1 are a pair."""
    first = 2 * torch.arange(len(frequencies), device=frequencies.device)
    return Rotation(first, first + 1, frequencies)


def turned(
    x: Float[Tensor, "*x m d"], positions: Num[Tensor, "*y m"], rotation: Rotation
) -> Float[Tensor, "*x m d"]:
    """Vectors turned by their positions, in double precision; by negative ones they turn back."""
    return turned_by(x, positions.double()[..., None] * rotation.frequencies.double(), rotation)


def turned_by(
    x: Float[Tensor, "*x m d"], angles: Float[Tensor, "*y m r"], rotation: Rotation
) -> Float[Tensor, "*x m d"]:
    """The same by an angle for each pair of channels."""
    cos, sin = angles.cos(), angles.sin()
    out = x.double().clone()
    a, b = out[..., rotation.first], out[..., rotation.second]
    out[..., rotation.first] = a * cos - b * sin
    out[..., rotation.second] = a * sin + b * cos
    return out


def mean_rotation(
    start: Int[Tensor, "b"], positions: int, d: int, rotation: Rotation
) -> Float[Tensor, "b d d"]:
    """The mean of the matrices that turn ``d`` channels by ``positions`` positions from ``start``
    on, in double precision.
    """
    places = start[:, None] + torch.arange(positions, device=start.device)
    eye = torch.eye(d, dtype=torch.float64, device=start.device)
    angles = places.double()[..., None] * rotation.frequencies.double()
    cos, sin = angles.cos().mean(1), angles.sin().mean(1)
    first, second = rotation.first, rotation.second
    matrix = eye.repeat(len(start), 1, 1)
    matrix[:, first, first], matrix[:, second, second] = cos, cos
    matrix[:, first, second], matrix[:, second, first] = -sin, sin
    return matrix
