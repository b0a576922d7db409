"""Normalisation of different scores to one scale, over some of the slots."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.slots import Slots, derived
from foveate.policies.parameters import Recent
from foveate.stages.recent import is_recent

EPS = 1e-8


class Over:
    """Minima, maxima and means over the marked slots, head by head.

    Scores may have leading axes, for several scores of the same slots.
    """

    def __init__(self, slots: Bool[Tensor, "b h n"]) -> None:
        self._others = ~slots
        self._count = slots.sum(-1, keepdim=True)
        self._some = self._count > 0  # a row shorter than the window has no prefix
        least, greatest = map(int, self._count.aminmax())
        alike = 0 < least == greatest and bool(slots[..., :least].all())
        self._first = least if alike else None  # usually the first slots are the marked ones

    def lowest(self, s: Float[Tensor, "*x b h n"]) -> Float[Tensor, "*x b h 1"]:
        """Return the minimum; zero where no slot is marked."""
        if self._first is not None:
            return s[..., : self._first].amin(-1, keepdim=True)
        return s.masked_fill(self._others, torch.inf).amin(-1, keepdim=True).where(self._some, 0.0)

    def highest(self, s: Float[Tensor, "*x b h n"]) -> Float[Tensor, "*x b h 1"]:
        """Return the maximum; zero where no slot is marked."""
        if self._first is not None:
            return s[..., : self._first].amax(-1, keepdim=True)
        return s.masked_fill(self._others, -torch.inf).amax(-1, keepdim=True).where(self._some, 0.0)

    def mean(self, s: Float[Tensor, "*x b h n"]) -> Float[Tensor, "*x b h 1"]:
        """Return the mean; zero where no slot is marked."""
        if self._first is not None:
            return s[..., : self._first].mean(-1, keepdim=True)
        total = s.masked_fill(self._others, 0.0).sum(-1, keepdim=True)
        return total / self._count.clamp_min(1)

    def min_max_to_mean(
        self, s: Float[Tensor, "*x b h n"], level: Float[Tensor, "b h 1"]
    ) -> Float[Tensor, "*x b h n"]:
        """Scale to [0, 1] over the marked slots, then so that their mean is ``level``.

        Both factors are applied as one, since x / range * level / (mean(x / range) + EPS) is x *
        level / (mean(x) + EPS * range).
        """
        above = s - self.lowest(s)
        span = self.highest(above) + EPS
        return above.mul_(level / (self.mean(above) + EPS * span))

    def lifted(self, s: Float[Tensor, "*x b h n"]) -> Float[Tensor, "*x b h n"]:
        """Shift scores up, so that the lowest of the marked slots is not below zero."""
        return s - self.lowest(s).clamp_max(0.0)


@derived
def over_tokens(slots: Slots) -> Over:
    """Normalise over all slots that hold a token."""
    return Over(slots.valid)


@derived
def over_tokens_before(slots: Slots, recent: Recent) -> Over:
    """Normalise over the slots that hold a token before the last ones."""
    return Over(slots.valid & ~is_recent(slots, recent))
