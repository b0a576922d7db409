"""Bringing scores of different kinds to one scale, over some of the slots."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EPS = 1e-8


class Over:
    """Minima, maxima and means over the slots that are marked, head by head."""

    def __init__(self, slots: Bool[Tensor, "b h n"]) -> None:
        self._others = ~slots
        self._count = slots.sum(-1, keepdim=True)

    def lowest(self, s: Float[Tensor, "b h n"]) -> Float[Tensor, "b h 1"]:
        """Infinite where no slot is marked."""
        return s.masked_fill(self._others, torch.inf).amin(-1, keepdim=True)

    def mean(self, s: Float[Tensor, "b h n"]) -> Float[Tensor, "b h 1"]:
        """Zero where no slot is marked."""
        total = s.masked_fill(self._others, 0.0).sum(-1, keepdim=True)
        return total / self._count.clamp_min(1)

    def min_max(self, s: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
        """To [0, 1] over the marked slots."""
        some = self._count > 0  # a row shorter than the window has no prefix
        low = self.lowest(s).where(some, 0.0)
        high = s.masked_fill(self._others, -torch.inf).amax(-1, keepdim=True).where(some, 1.0)
        return (s - low) / (high - low + EPS)

    def to_mean(
        self, s: Float[Tensor, "b h n"], level: Float[Tensor, "b h 1"]
    ) -> Float[Tensor, "b h n"]:
        """Scaled, so that the mean over the marked slots is ``level``."""
        return s * (level / (self.mean(s) + EPS))

    def lifted(self, s: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
        """Moved up, so that the lowest of the marked slots is not below zero."""
        return s - self.lowest(s).clamp_max(0.0)
