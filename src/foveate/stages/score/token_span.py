"""Tokens that each head stores, counted from its first one.

Scores that work by parts of a prompt use them: parts must begin where the prompt does, wherever a
batch is padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from foveate.cache.slots import Slots, derived

Over = Literal["layer", "head"]
"""Scope of standardisation: a layer's heads together, or each by itself."""


@dataclass(frozen=True, eq=False)
class TokenSpan:
    """Tokens ``start`` to ``start + count`` of each head's slots."""

    start: Int[Tensor, "b h"]
    count: Int[Tensor, "b h"]
    slots: int

    @cached_property
    def longest(self) -> int:
        """Largest number of tokens of a head."""
        return int(self.count.max())

    @cached_property
    def shortest(self) -> int:
        """Smallest number of tokens of a head."""
        return int(self.count.min())

    @cached_property
    def inside(self) -> Bool[Tensor, "b h l"]:
        """Mask of the tokens that each head has, padded to the longest head."""
        index = torch.arange(self.longest, device=self.count.device)
        return index < self.count[..., None]

    @cached_property
    def alike(self) -> bool:
        """True if all heads of all rows have the same slots."""
        return all(int(t.min()) == int(t.max()) for t in (self.start, self.count))

    def take(self, x: Shaped[Tensor, "b h n *d"]) -> Shaped[Tensor, "b h l *d"]:
        """Gather the tokens alone, from index 0 on; shorter heads are padded with zeros."""
        offsets = torch.arange(self.longest, device=x.device)
        if self.alike:
            first = int(self.start.min())
            return x[:, :, first : first + len(offsets)]
        index = (self.start[..., None] + offsets).clamp_max(self.slots - 1)
        more = [1] * (x.ndim - 3)
        index, inside = (t.view(*t.shape, *more) for t in (index, self.inside))
        return x.take_along_dim(index, dim=2).masked_fill(~inside, 0)

    def put(
        self, values: Float[Tensor, "b h l"], elsewhere: float | Float[Tensor, "b #h 1"]
    ) -> Float[Tensor, "b h n"]:
        """Scatter values back to the slots; other slots get ``elsewhere``."""
        other = torch.as_tensor(elsewhere, dtype=values.dtype, device=values.device)
        index = torch.arange(self.slots, device=values.device) - self.start[..., None]
        inside = (index >= 0) & (index < self.count[..., None])
        if not values.shape[2]:
            values = F.pad(values, (0, 1))
        index = index.clamp(0, values.shape[2] - 1)
        return torch.where(inside, values.take_along_dim(index, 2), other)


@derived
def span(slots: Slots, sinks: int = 0, recent: int = 0) -> TokenSpan:
    """Return all stored tokens but the first ``sinks`` and the last ``recent`` of each head."""
    stored, n = slots.available, slots.pos.shape[2]
    first = stored.clamp_max(sinks)
    last = (stored - first).clamp_max(recent)
    return TokenSpan(n - stored + first, stored - first - last, n)


def standardised(
    values: Float[Tensor, "b h l"], inside: Bool[Tensor, "b h l"], over: Over
) -> Float[Tensor, "b h l"]:
    """Standardise values to mean 0 and deviation 1 over the tokens inside; zeros elsewhere."""
    dims = (2,) if over == "head" else (1, 2)
    count = inside.sum(dims, keepdim=True)
    mean = values.masked_fill(~inside, 0.0).sum(dims, keepdim=True) / count.clamp_min(1)
    centred = (values - mean).masked_fill(~inside, 0.0)
    variance = centred.square().sum(dims, keepdim=True) / (count - 1).clamp_min(1)
    return centred / variance.sqrt().clamp_min(1e-6)


def best(values: Float[Tensor, "b h l"]) -> Float[Tensor, "b 1 1"]:
    """Return the highest value of each row; 0 if there are no tokens."""
    return (
        F.pad(values.flatten(1), (0, 1), value=-torch.inf)
        .amax(1)[:, None, None]
        .nan_to_num(neginf=0.0)
    )
