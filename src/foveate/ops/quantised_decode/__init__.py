"""One decoding step's attention over pairs of which the oldest are codes of a few bits."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from foveate.ops.choice import Impl, implementation
from foveate.ops.quantised_decode.reference import FlatCodes, Rest

__all__ = ["FlatCodes", "Rest", "quantised_decode"]


def quantised_decode(
    q: Float[Tensor, "b hq 1 d"],
    coded: FlatCodes,
    rest: Rest,
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float = 0.0,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """Attention of one query per row over its heads' codes, then what is flat in full precision,
    then the tails; nothing is masked. Softmax in float32. A head without any pair gets zeros.

    The reference opens the codes; the kernel reads them as they are, so that nothing of the size of
    the cache is made. Both read a number back as least + code * step, in the type of the query.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        coded: the oldest pairs, quantised.
        rest: pairs that heads hold different numbers of, in full precision.
        tail_k: keys of the newest pairs, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        impl: "reference" or "triton"; None is what :func:`foveate.ops.using` says.

    Raises:
        UnsupportedKernel: "triton" with tensors that the kernel does not take.
        MissingPackage: "triton", and Triton is not installed.
    """
    out: Tensor = implementation(__name__, impl).quantised_decode(
        q, coded, rest, tail_k, tail_v, scale, n
    )
    return out
