"""Bringing scores of different kinds to one scale, over some of the slots.

The ``domain`` marks the slots that minima, maxima and means are taken over.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

EPS = 1e-8


def min_max(s: Float[Tensor, "b h n"], domain: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """To [0, 1] over the domain."""
    some = domain.any(-1, keepdim=True)  # a row shorter than the window has no prefix
    low = s.masked_fill(~domain, torch.inf).amin(-1, keepdim=True).where(some, 0.0)
    high = s.masked_fill(~domain, -torch.inf).amax(-1, keepdim=True).where(some, 1.0)
    return (s - low) / (high - low + EPS)


def mean_over(s: Float[Tensor, "b h n"], domain: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h 1"]:
    """The mean over the domain."""
    return s.masked_fill(~domain, 0.0).sum(-1, keepdim=True) / domain.sum(
        -1, keepdim=True
    ).clamp_min(1)


def to_mean(
    s: Float[Tensor, "b h n"], level: Float[Tensor, "b h 1"], domain: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h n"]:
    """Scaled, so that the mean over the domain is ``level``."""
    return s * level / (mean_over(s, domain) + EPS)


def lifted(s: Float[Tensor, "b h n"], domain: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    """Moved up, so that the lowest of the domain is not below zero."""
    lowest = s.masked_fill(~domain, torch.inf).amin(-1, keepdim=True)
    return s - lowest.clamp_max(0.0)
