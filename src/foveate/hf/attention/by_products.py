"""Attention outputs, and the by-products that a policy's score reads.

Gradients of the output are exact where a pass sees every token that was read; elsewhere a backward
pass raises. A training step reads its whole input in one pass, over its own keys and values, and
the pairs kept afterwards have no part in its loss. A pass after a compression would lack the
gradients of the dropped pairs, and those of the kept pairs, which are copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import WindowSums, WindowWeights
from foveate.errors import UnsupportedCache

Output = tuple[Tensor, Tensor | None]
"""Return value of transformers' attention functions: output [b, m, hq, e], and weights or None."""

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Output]
"""The model's own attention of queries, keys and values under a mask."""


@dataclass(frozen=True)
class ModelAttention:
    """One attention module's function, under the attention implementation chosen for the model.

    ``plain`` takes the mask that transformers builds for that implementation, or None; ``masked``
    takes a mask [b, 1 or hq, m, n]. If the implementation ``takes_masks`` of that shape, they are
    one function; if it is ``additive``, it takes no boolean ones. ``causal_without_mask``: without
    a mask, queries see every column up to their own. ``replaceable``: it has no caps or sinks, so
    Foveate's operators may replace it over compressed pairs. ``is_sdpa``: it is PyTorch's
    attention, so they may replace it in any pass.
    """

    plain: Callable[[Tensor, Tensor, Tensor, Any], Output]
    masked: Attend
    takes_masks: bool = True
    additive: bool = False
    replaceable: bool = True
    is_sdpa: bool = False
    causal_without_mask: bool = False

    def with_masks(self) -> ModelAttention:
        """Return a copy whose ``plain`` is ``masked``, for a pass whose own kind of mask cannot be
        cut.
        """
        return replace(self, plain=self.masked, takes_masks=True)


class Attended(NamedTuple):
    """Output [b, m, hq, e], attention weights if the model returns any, and by-products."""

    output: Float[Tensor, "b m hq e"]
    weights: Tensor | None = None
    column_sums: Float[Tensor, "b hq n"] | None = None
    window_sums: WindowSums | None = None
    column_maxima: Float[Tensor, "b h n"] | None = None


class ByProducts(NamedTuple):
    """Kinds of by-products that a pass computes: at most one."""

    column_sums: bool = False
    window: WindowWeights | None = None
    column_maxima: bool = False


NOTHING = ByProducts()


class _NoBackward(torch.autograd.Function):
    """Identity function whose backward pass raises."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise UnsupportedCache(
            "gradients do not flow through a compressed cache: this pass attended to what was kept "
            "of an earlier one. Read the whole input in one pass, or compute the loss outside of "
            "the compress() block."
        )


def without_backward(out: Tensor) -> Tensor:
    """Return an output over compressed pairs with its backward pass disabled: ``backward`` raises
    UnsupportedCache. The forward pass never raises, as decoding by hand often forgets
    ``torch.no_grad()``.
    """
    if not (torch.is_grad_enabled() and out.requires_grad):
        return out
    marked: Tensor = _NoBackward.apply(out)  # type: ignore[no-untyped-call]
    return marked
