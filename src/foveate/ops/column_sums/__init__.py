"""Column sums of the causal softmax: how much attention each slot got from all queries."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.choice import Impl, implementation
from foveate.ops.column_sums.one_query import attention_of_one
from foveate.ops.column_sums.reference import attention_with_maxima

__all__ = [
    "attention_of_one",
    "attention_with_counted_sums",
    "attention_with_maxima",
    "attention_with_sums",
    "column_sums",
]


def column_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    scale: float,
    mask: Bool[Tensor, "b #h m n"] | None = None,
    pads: list[int] | None = None,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq n"]:
    """Sum over queries of the softmax, per query head and slot, in float32.

    No m x n matrix is made: the reference works in blocks of whole rows; the kernel makes one pass
    for each query's log-sum-exp and one for the sums.

    Args:
        q: the last ``m`` queries of a sequence of ``n``; ``hq = h * g``.
        k: keys of the whole sequence.
        scale: of the logits.
        mask: which slots each query attends to. None: causal, query i stands at slot n - m + i.
        pads: slots in front of each row that are padding: neither query nor key there counts.
        impl: "reference" or "triton"; None is what :func:`foveate.ops.using` says.

    Raises:
        UnsupportedKernel: "triton" with tensors that the kernels do not take.
        MissingPackage: "triton", and Triton is not installed.
    """
    summed: Tensor = implementation(__name__, impl).column_sums(q, k, scale, mask, pads)
    return summed


def attention_with_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    pads: list[int] | None = None,
    *,
    impl: Impl | None = None,
) -> tuple[Float[Tensor, "b hq m e"], Float[Tensor, "b hq n"]]:
    """Causal attention, and its column sums from the same softmax, in float32.

    Arguments and errors are those of :func:`column_sums`. The outputs of padding are zero.
    """
    both: tuple[Tensor, Tensor] = implementation(__name__, impl).attention_with_sums(
        q, k, v, scale, pads
    )
    return both


def attention_with_counted_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    counts: Float[Tensor, "b c g m"],
    scale: float,
    n: float = 0.0,
    pads: list[int] | None = None,
    *,
    impl: Impl | None = None,
) -> tuple[Float[Tensor, "b hq m e"], Float[Tensor, "b h c n"]]:
    """Causal attention, and what its queries pay to every slot, added up over a KV head's queries
    as a softmax-n: the attention itself is the softmax. In float32.

    ``counts`` says how much each query counts in each of ``c`` sums; ``n`` is softmax-n's, 0 the
    softmax. All else is as in :func:`attention_with_sums`, errors included.
    """
    both: tuple[Tensor, Tensor] = implementation(__name__, impl).attention_with_counted_sums(
        q, k, v, counts, scale, n, pads
    )
    return both
