"""Plain torch: one boolean index a tensor."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor


class Compacted(NamedTuple):
    """Flat pairs and their columns."""

    k: Float[Tensor, "f d"]
    v: Float[Tensor, "f e"]
    columns: Int32[Tensor, "f"]


def compaction(
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    columns: Int[Tensor, "b h n"],
    kept: Bool[Tensor, "b h n"],
    starts: Int[Tensor, "heads"],
) -> Compacted:
    """``starts`` follow from ``kept``, and are not needed."""
    return Compacted(k[kept], v[kept], columns[kept].to(torch.int32))
