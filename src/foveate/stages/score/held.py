"""The tokens that each head holds, from its first one on: for scores that go by parts of a prompt,
which have to begin where the prompt does, wherever a batch pads it.
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
"""What scores are standardised over: a layer's heads together, or each by itself."""


@dataclass(frozen=True, eq=False)
class TokenSpan:
    """Tokens ``start`` to ``start + count`` of each head's slots."""

    start: Int[Tensor, "b h"]
    count: Int[Tensor, "b h"]
    slots: int

    @cached_property
    def longest(self) -> int:
        """The most tokens of a head."""
        return int(self.count.max())

    @cached_property
    def shortest(self) -> int:
        """The fewest tokens of a head."""
        return int(self.count.min())

    @cached_property
    def inside(self) -> Bool[Tensor, "b h l"]:
        """Of as many places as the longest head needs: True where a head has a token."""
        places = torch.arange(self.longest, device=self.count.device)
        return places < self.count[..., None]

    @cached_property
    def alike(self) -> bool:
        """Whether all heads of all rows have the same slots."""
        return all(int(t.min()) == int(t.max()) for t in (self.start, self.count))

    def take(self, x: Shaped[Tensor, "b h n *d"]) -> Shaped[Tensor, "b h l *d"]:
        """The tokens alone, from place 0 on; zeros behind those of shorter heads."""
        places = torch.arange(self.longest, device=x.device)
        if self.alike:
            first = int(self.start.min())
            return x[:, :, first : first + len(places)]
        index = (self.start[..., None] + places).clamp_max(self.slots - 1)
        more = [1] * (x.ndim - 3)
        index, inside = (t.view(*t.shape, *more) for t in (index, self.inside))
        return x.take_along_dim(index, dim=2).masked_fill(~inside, 0)

    def put(
        self, values: Float[Tensor, "b h l"], elsewhere: float | Float[Tensor, "b #h 1"]
    ) -> Float[Tensor, "b h n"]:
        """Back to the slots; ``elsewhere`` is what others have."""
        other = torch.as_tensor(elsewhere, dtype=values.dtype, device=values.device)
        place = torch.arange(self.slots, device=values.device) - self.start[..., None]
        inside = (place >= 0) & (place < self.count[..., None])
        if not values.shape[2]:
            values = F.pad(values, (0, 1))
        place = place.clamp(0, values.shape[2] - 1)
        return torch.where(inside, values.take_along_dim(place, 2), other)


@derived
def span(slots: Slots, sinks: int = 0, recent: int = 0) -> TokenSpan:
    """All tokens that are held but for the first ``sinks`` and the last ``recent`` of each head."""
    held, n = slots.available, slots.pos.shape[2]
    first = held.clamp_max(sinks)
    last = (held - first).clamp_max(recent)
    return TokenSpan(n - held + first, held - first - last, n)


def standardised(
    values: Float[Tensor, "b h l"], inside: Bool[Tensor, "b h l"], over: Over
) -> Float[Tensor, "b h l"]:
    """Moved and scaled to mean 0 and deviation 1 over the places inside; zeros elsewhere."""
    dims = (2,) if over == "head" else (1, 2)
    count = inside.sum(dims, keepdim=True)
    mean = values.masked_fill(~inside, 0.0).sum(dims, keepdim=True) / count.clamp_min(1)
    off = (values - mean).masked_fill(~inside, 0.0)
    variance = off.square().sum(dims, keepdim=True) / (count - 1).clamp_min(1)
    return off / variance.sqrt().clamp_min(1e-6)


def best(values: Float[Tensor, "b h l"]) -> Float[Tensor, "b 1 1"]:
    """The highest of each row; zero of no place."""
    return (
        F.pad(values.flatten(1), (0, 1), value=-torch.inf)
        .amax(1)[:, None, None]
        .nan_to_num(neginf=0.0)
    )
