"""One decoding step's attention over heads that hold different numbers of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from foveate.ops.choice import Impl, implementation

__all__ = ["ragged_decode"]


def ragged_decode(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f e"],
    lengths: Sequence[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float = 0.0,
    *,
    starts: Int[Tensor, "heads"] | None = None,
    longest: int | None = None,
    tail_length: Int[Tensor, "1"] | None = None,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """Attention of one query per row over its heads' bodies and tails; nothing is masked.

    Softmax in float32. A head without any pair gets zeros.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        flat_k: the bodies' keys, head after head, row after row.
        flat_v: their values.
        lengths: body length of each (row, KV head), in that order.
        tail_k: keys appended later, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        starts: where each body starts, and where the last one ends, in 64 bits, on q's device. The
            kernel reads them instead of ``lengths``; None: they are made anew, at every call.
        longest: the largest of ``lengths``; None: it is looked for.
        tail_length: how many pairs of the tail count, on q's device; None: all.
        impl: "reference" or "triton"; None is what :func:`foveate.ops.using` says.

    With ``starts``, ``longest`` and ``tail_length`` given, the kernel's launches depend on the
    shapes alone and nothing waits for the device, as a CUDA graph requires.

    Raises:
        UnsupportedKernel: "triton" with tensors that the kernel does not take.
        MissingPackage: "triton", and Triton is not installed.
    """
    out: Tensor = implementation(__name__, impl).ragged_decode(
        q, flat_k, flat_v, lengths, tail_k, tail_v, scale, n, starts, longest, tail_length
    )
    return out
