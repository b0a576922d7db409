"""What MixKV reads off the keys and values of a layer: norms, diversity, redundancy."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.choice import Impl, implementation
from foveate.ops.mix_statistics.reference import MixStatistics

__all__ = ["MixStatistics", "mix_statistics"]


def mix_statistics(
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    valid: Bool[Tensor, "b h n"] | None = None,
    *,
    impl: Impl | None = None,
) -> MixStatistics:
    """All statistics together, in float32, head by head.

    The kernel reads values once and keys twice: diversity needs the mean of all keys first.

    Args:
        k: keys.
        v: values.
        valid: which slots hold a token, at least one of each head; None: all of them.
        impl: "reference" or "triton"; None is what :func:`foveate.ops.using` says.

    Raises:
        UnsupportedKernel: "triton" with tensors that the kernel does not take.
        MissingPackage: "triton", and Triton is not installed.

    Source: MixKV (arXiv:2510.20707), section 3.2 and equation 4.
    """
    statistics: MixStatistics = implementation(__name__, impl).mix_statistics(k, v, valid)
    return statistics
