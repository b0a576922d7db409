"""Heads one by one: on a CPU a product for each takes less time than their batch."""

from __future__ import annotations

from jaxtyping import Shaped
from torch import Tensor


def each_head(t: Shaped[Tensor, "b h n d"]) -> list[Shaped[Tensor, "n d"]]:
    """Views, row by row."""
    return [head for row in t.unbind() for head in row.unbind()]
