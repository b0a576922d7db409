"""Selection of indices of a long row for a drawing."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def evenly(count: int, most: int) -> Int[Tensor, "places"]:
    """Return at most ``most`` of ``count`` indices, evenly from the first to the last."""
    places = torch.linspace(0, count - 1, min(most, count), dtype=torch.float32, device="cpu")
    return places.round().long()
