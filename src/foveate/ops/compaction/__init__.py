"""Kept pairs, one after the other."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.ops.choice import Impl, implementation
from foveate.ops.compaction.reference import Compacted

__all__ = ["Compacted", "compaction"]


def compaction(
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    columns: Int[Tensor, "b h n"],
    kept: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
    *,
    impl: Impl | None = None,
) -> Compacted:
    """The kept slots of every head, head after head, row after row, in their order.

    Args:
        k: keys.
        v: values.
        columns: a number for each slot, below 2^31.
        kept: which slots to copy.
        counts: how many that are of each row and head, on k's device.
        impl: "reference" or "triton"; None is what :func:`foveate.ops.using` says.

    Raises:
        UnsupportedKernel: "triton" with tensors that the kernel does not take.
        MissingPackage: "triton", and Triton is not installed.
    """
    done: Compacted = implementation(__name__, impl).compaction(k, v, columns, kept, counts)
    return done
