"""Which kept slot each other slot is nearest to."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.choice import Impl, implementation
from foveate.ops.nearest.reference import Nearest, nearest_by_position

__all__ = ["Nearest", "nearest_by_cosine", "nearest_by_position"]


def nearest_by_cosine(
    k: Float[Tensor, "b h n d"], kept: Bool[Tensor, "b h n"], *, impl: Impl | None = None
) -> Nearest:
    """The kept slot whose key has the largest cosine, in float32; of equal ones the earlier.

    Takes O(n * kept) time, and makes no n x kept matrix. ``impl`` is "reference" or "triton"; None
    is what :func:`foveate.ops.using` says. Where cosines differ by rounding alone, the two may
    choose differently.

    Raises:
        UnsupportedKernel: "triton" with tensors that the kernel does not take.
        MissingPackage: "triton", and Triton is not installed.
    """
    nearest: Nearest = implementation(__name__, impl).nearest_by_cosine(k, kept)
    return nearest
