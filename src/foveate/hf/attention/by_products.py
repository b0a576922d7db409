"""What an attention returns: its output, and what it made on the way for the policy's score.

Gradients of the output are right where a pass sees everything that was read, and refused by name
where it does not. A training step reads its whole input in one pass, over the keys and values as
they are made, and what is kept of them afterwards has no part in its loss. What comes after a
compression would lack the gradients of the pairs that are gone, and of those held, which are
copies.
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
"""As transformers' attention functions return it: [b, m, hq, e], and weights or None."""

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Output]
"""The model's own attention of queries, keys and values under a mask."""


@dataclass(frozen=True)
class ModelAttention:
    """The attention of one of the model's modules, as the implementation that was chosen for the
    model does it.

    ``plain`` takes the mask that transformers makes for that implementation, or none; ``masked`` a
    mask [b, 1 or hq, m, n]. They are the same where the implementation ``takes_masks``, of the
    ``additive`` kind alone or of both, and ``causal_without_mask`` where queries see what is up to
    their own place if there is none. Operators of ours may do it instead if it is
    ``replaceable``, of any pass if it ``is_sdpa``: PyTorch's attention, and nothing else.
    """

    plain: Callable[[Tensor, Tensor, Tensor, Any], Output]
    masked: Attend
    takes_masks: bool = True
    additive: bool = False
    replaceable: bool = True
    is_sdpa: bool = False
    causal_without_mask: bool = False

    def with_masks(self) -> ModelAttention:
        """The same where a mask of transformers' own kind cannot be cut to fit."""
        return replace(self, plain=self.masked, takes_masks=True)


class Attended(NamedTuple):
    """The output [b, m, hq, e], the model's attention weights if it gives any, and by-products."""

    output: Float[Tensor, "b m hq e"]
    weights: Tensor | None = None
    column_sums: Float[Tensor, "b hq n"] | None = None
    window_sums: WindowSums | None = None
    column_maxima: Float[Tensor, "b h n"] | None = None


class Wanted(NamedTuple):
    """The by-products that a pass is to make: at most one kind."""

    column_sums: bool = False
    window: WindowWeights | None = None
    column_maxima: bool = False


NOTHING = Wanted()


class _Refused(torch.autograd.Function):
    """The same tensor, through which nothing flows back."""

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


def refused(out: Tensor) -> Tensor:
    """The output of an attention over compressed pairs, for use without gradients alone. Decoding
    by hand often forgets ``torch.no_grad()``, so only a backward pass raises.
    """
    if not (torch.is_grad_enabled() and out.requires_grad):
        return out
    marked: Tensor = _Refused.apply(out)  # type: ignore[no-untyped-call]
    return marked
