"""Heads one by one (on a CPU a product for each takes less time than their batch), and one after
the other.
"""

from __future__ import annotations

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


def each_head(t: Shaped[Tensor, "b h n d"]) -> list[Shaped[Tensor, "n d"]]:
    """Views, row by row."""
    heads: list[Tensor] = []
    for row in t.unbind():
        heads += row.unbind()
    return heads


def starts_of(counts: Int[Tensor, "b h"]) -> Int[Tensor, "heads"]:
    """Where each head's slots start in flat tensors, and where the last one's end: b * h + 1."""
    return torch.nn.functional.pad(counts.flatten().cumsum(0), (1, 0))
