"""Kept pairs of all heads, one after the other in flat tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from foveate.ops.choice import Impl, operator


class Compacted(NamedTuple):
    """Flat pairs and their columns."""

    k: Float[Tensor, "f d"]
    v: Float[Tensor, "f e"]
    columns: Int32[Tensor, "f"]


@operator
def compaction(
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    columns: Int[Tensor, "b h n"],
    kept: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
    *,
    impl: Impl | None = None,
) -> Compacted:
    """Copy the kept slots of every head, head after head, row after row, in order.

    Args:
        k: keys.
        v: values.
        columns: a number for each slot, below 2^31.
        kept: True at slots to copy.
        counts: number of kept slots per row and head, on k's device; only kernels need it.
        impl: see :func:`foveate.ops.choice.operator`, also for the errors.
    """
    indices = _true_indices(kept.flatten())
    columns = columns.reshape(-1).index_select(0, indices)
    return Compacted(_rows(k, kept, indices), _rows(v, kept, indices), columns.to(torch.int32))


def _true_indices(marked: Bool[Tensor, "s"]) -> Int[Tensor, "f"]:
    """Return the indices of true elements. NumPy takes a third of torch's time on a CPU."""
    if marked.device.type == "cpu":
        return torch.from_numpy(marked.numpy().nonzero()[0])
    return marked.nonzero()[:, 0]


def _rows(
    t: Float[Tensor, "b h n d"], kept: Bool[Tensor, "b h n"], indices: Int[Tensor, "f"]
) -> Float[Tensor, "f d"]:
    """Return the kept rows.

    index_select takes 0.4 of a boolean index's time, but would first copy a tensor that is a slice.
    """
    return t.flatten(0, 2).index_select(0, indices) if t.is_contiguous() else t[kept]


def starts_of(counts: Int[Tensor, "b h"]) -> Int[Tensor, "heads"]:
    """Return the start of each head's slots in flat tensors, and the end of the last: b * h + 1."""
    return torch.nn.functional.pad(counts.flatten().cumsum(0), (1, 0))
