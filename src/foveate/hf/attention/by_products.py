"""What an attention returns: its output, and what it made on the way for the policy's score.

Where a score needs the column sums of the prompt's attention, one softmax makes both: a second pass
over all queries and keys would cost nearly as much as the attention itself. Where it needs what a
long observation window pays (a tenth of the prompt in CSP and DAVID), those rows are done once, for
the output and for the score, with the weights that the score has declared. The output differs from
that of the stock attention by rounding (1e-6 in float32), so both are done only for prompts that
will be compressed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import WindowSums, WindowWeights
from foveate.ops.column_sums import (
    attention_with_counted_sums,
    attention_with_maxima,
    attention_with_sums,
)

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


def with_column_sums(
    query: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    pads: list[int],
) -> Attended:
    """Causal attention, padding of each row in front."""
    out, sums = attention_with_sums(query, k, v, scale, pads)
    return Attended(out.to(query.dtype).transpose(1, 2), column_sums=sums)


def with_column_maxima(
    query: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
) -> Attended:
    """Causal attention without padding."""
    out, most = attention_with_maxima(query, k, v, scale)
    return Attended(out.to(query.dtype).transpose(1, 2), column_maxima=most)


def with_window_sums(
    base: Attend,
    query: Float[Tensor, "b hq n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    mask: Tensor | None,
    scale: float,
    pads: list[int],
    weights: WindowWeights,
) -> Attended:
    """Causal attention of a prompt in one pass: the early queries' by the model's own ``base``, the
    window's here.
    """
    w = weights.counts.shape[-1]
    early = None if mask is None else mask[:, :, :-w, :-w]
    before, _ = base(query[:, :, :-w], k[:, :, :-w], v[:, :, :-w], early)
    rest, sums = attention_with_counted_sums(
        query[:, :, -w:], k, v, weights.counts, scale, weights.n, pads
    )
    output = torch.cat([before, rest.to(before.dtype).transpose(1, 2)], dim=1)
    return Attended(output, window_sums=WindowSums(weights, sums))
