"""Selection of indices of a long row for a drawing."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def even_indices(count: int, limit: int) -> Int[Tensor, "indices"]:
    """Return at most ``most`` of ``count`` indices, evenly from the first to the last."""
    indices = torch.linspace(0, count - 1, min(limit, count), dtype=torch.float32, device="cpu")
    return indices.round().long()
