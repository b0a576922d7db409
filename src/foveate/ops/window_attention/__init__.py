"""Attention that the last queries of a prompt pay to every slot."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.choice import Impl, implementation
from foveate.ops.window_attention.hidden import from_first_hidden

__all__ = ["from_first_hidden", "window_attention", "window_sums"]


def window_attention(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    scale: float,
    n: float = 0.0,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b h g w n"]:
    """Attention probabilities of ``w`` queries over all slots, in float32.

    Args:
        q: queries, ``hq = h * g``; query head ``i`` reads KV head ``i // g``.
        k: keys.
        visible: which of the last ``s`` slots each query attends to; it does to all before them.
            A query that sees none gets zeros.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        impl: "reference" or "triton"; None is what :func:`foveate.ops.using` says.

    Raises:
        UnsupportedKernel: "triton" with tensors that the kernel does not take.
        MissingPackage: "triton", and Triton is not installed.
    """
    paid: Tensor = implementation(__name__, impl).window_attention(q, k, visible, scale, n)
    return paid


def window_sums(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    counts: Float[Tensor, "b c g w"],
    scale: float,
    n: float = 0.0,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b h c n"]:
    """What :func:`window_attention` gives, added up over a KV head's queries, in float32.
    ``counts`` says how much each counts in each of ``c`` sums; all else is as there, errors
    included.
    """
    of = implementation(__name__, impl)
    sums: Tensor = of.window_sums(q, k, visible, counts, scale, n)
    return sums
