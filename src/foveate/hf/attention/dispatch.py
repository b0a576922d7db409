"""Choice of the attention function for one pass over a layer's pairs, and of its by-products.

Where a score needs the column sums of the prompt's attention, one softmax computes both: a second
pass over all queries and keys would cost nearly as much as the attention itself. Where it needs the
attention of a long observation window (a tenth of the prompt in CSP and DAVID), those rows are
computed once, for the output and for the score, with the weights that the score has declared. The
output differs from that of the stock attention by rounding (1e-6 in float32), so both are computed
only for prompts that will be compressed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, WindowSums, WindowWeights
from foveate.cache.pairs import DensePairs, Pairs, QuantisedPairs, RaggedPairs, RewrittenPairs
from foveate.compression.layer_memory import Pass
from foveate.errors import UnsupportedModel
from foveate.hf.attention.by_products import NOTHING, Attended, ByProducts, ModelAttention
from foveate.hf.attention.computed import Computed
from foveate.hf.attention.grouped import attend_by_head, attend_folded, folds, splits_heads
from foveate.hf.attention.masks import MaskFacts, PassView, for_model, over_slots
from foveate.ops.choice import chosen
from foveate.ops.column_sums import (
    attention_with_counted_sums,
    attention_with_maxima,
    attention_with_sums,
)
from foveate.ops.ragged_decode import ragged_decode
from foveate.ops.softmax_n import attention_n
from foveate.policies.policy import Policy

HALF_OR_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
WORTH = 128  # queries: sums of shorter windows cost little, even computed separately


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries of one pass, after which ``seen`` tokens have been read.

    ``view`` has the model's mask, and ``facts`` returns the properties of that mask. If pruning
    dropped tokens of the pass, ``computed`` has the columns of the others, and the mask still
    covers all of them.
    """

    q: Float[Tensor, "b hq m d"]
    view: PassView
    scale: float
    attention: ModelAttention
    seen: int
    facts: Callable[[], MaskFacts]
    computed: Computed | None = None

    @property
    def columns(self) -> Int[Tensor, "m"]:
        """Columns of the queries [m]: the last ones read."""
        return torch.arange(self.seen - self.q.shape[2], self.seen, device=self.q.device)

    @property
    def sees_all(self) -> bool:
        """True for one query per row that sees every stored slot. A traced step cannot read a mask
        (transformers up to 5.13 builds one there), so with a mask it is False: the mask is applied
        slot by slot.
        """
        if self.q.shape[2] > 1 or (self.view.mask is not None and torch.compiler.is_compiling()):
            return False
        return self.facts().open


def compute_attention(
    queries: Queries, pairs: Pairs, n: float, by_products: ByProducts = NOTHING
) -> Attended:
    """Compute the attention over a layer's pairs, by the model's own function wherever that can do
    it. ``n`` is the n of softmax-n; it applies to compressed pairs only.
    """
    if queries.computed is not None:
        return attend_computed(queries, queries.computed, pairs)
    sees_all, n = queries.sees_all, n if pairs.compressed else 0.0
    ours = queries.attention.replaceable
    if n and not ours:
        _refuse_softmax_n(n)
    if sees_all and ours and isinstance(pairs, QuantisedPairs) and pairs.layout.decodes_as_codes:
        return Attended(pairs.attend(queries.q, queries.scale, n).transpose(1, 2))
    if sees_all and isinstance(pairs, RewrittenPairs):
        return _decode(queries, pairs, n)
    pairs = pairs if isinstance(pairs, DensePairs) else pairs.opened()
    if isinstance(pairs, DensePairs) and not pairs.compressed and _needs_no_mask(queries):
        return _attend_all(queries, pairs, by_products)
    if sees_all and (ours or isinstance(pairs, DensePairs)):
        return _decode(queries, pairs, n)
    padded, q, mask = pairs.padded(), queries.q, queries.view.mask
    visible = over_slots(mask, padded.columns, queries.columns)
    return attend_visible(queries.attention, q, padded.k, padded.v, visible, mask, queries.scale, n)


def _refuse_softmax_n(n: float) -> NoReturn:
    raise UnsupportedModel(
        f"softmax-n (n={n}) cannot be combined with this model's attention, which has caps or "
        "sinks. Leave decode_n and attend out of the policy."
    )


def attend_computed(queries: Queries, computed: Computed, pairs: Pairs) -> Attended:
    """Compute the attention over the tokens that were computed. No mask is needed if these are all
    stored tokens and each attends up to its own column.
    """
    attend, facts, opened = queries.attention, queries.facts(), pairs.opened()
    fresh = computed.inputs == queries.seen and opened.longest == queries.q.shape[2]
    if fresh and facts.causal and attend.causal_without_mask and not computed.empty:
        k, v, _ = opened.padded()
        return Attended(*attend.plain(queries.q, k, v, None))
    k, v, columns = opened.padded()
    visible = computed.visible(queries.view.mask, facts, columns)
    return attend_visible(attend, queries.q, k, v, visible, queries.view.mask, queries.scale, 0.0)


def _needs_no_mask(queries: Queries) -> bool:
    """Return True if the model's own attention needs no mask of Foveate's over the columns."""
    aligned = not queries.attention.takes_masks  # they put the last query at the last column
    return aligned or queries.view.mask is not None or queries.q.shape[2] in (1, queries.seen)


def _attend_all(queries: Queries, pairs: DensePairs, by_products: ByProducts) -> Attended:
    """Compute the attention over every column, with the requested by-products."""
    (k, v), attend = pairs.both(), queries.attention
    q, scale = queries.q, queries.scale
    if by_products.column_sums:
        out, sums = attention_with_sums(q, k, v, scale, queries.facts().pads.tolist())
        return Attended(out.to(q.dtype).transpose(1, 2), column_sums=sums)
    if by_products.column_maxima:
        out, maxima = attention_with_maxima(q, k, v, scale)
        return Attended(out.to(q.dtype).transpose(1, 2), column_maxima=maxima)
    if by_products.window is not None:
        return attend_with_window_sums(queries, pairs, by_products.window)
    mask = queries.view.own
    shared = isinstance(mask, Tensor) and mask.shape[1] == 1  # a mask may be each query head's own
    if shared and splits_heads(attend, q, k):
        return Attended(attend_by_head(q, k, v, scale, mask))
    return Attended(*attend.plain(q, k, v, mask))


def attend_with_window_sums(
    queries: Queries, pairs: DensePairs, weights: WindowWeights
) -> Attended:
    """Compute the causal attention of a prompt in one pass: the early queries' with the model's own
    function, the window's with Foveate's, which also returns its column sums.
    """
    (k, v), q, mask = pairs.both(), queries.q, queries.view.mask
    w, pads = weights.counts.shape[-1], queries.facts().pads.tolist()
    early = None if mask is None else mask[:, :, :-w, :-w]
    before, _ = queries.attention.masked(q[:, :, :-w], k[:, :, :-w], v[:, :, :-w], early)
    rest, sums = attention_with_counted_sums(
        q[:, :, -w:], k, v, weights.counts, queries.scale, weights.n, pads
    )
    output = torch.cat([before, rest.to(before.dtype).transpose(1, 2)], dim=1)
    return Attended(output, window_sums=WindowSums(weights, sums))


def _decode(
    queries: Queries, pairs: DensePairs | RaggedPairs | RewrittenPairs, n: float
) -> Attended:
    """Compute the attention of one query per row that sees all pairs."""
    q, scale = queries.q, queries.scale
    if isinstance(pairs, RaggedPairs):
        out = ragged_decode(
            q, *pairs.parts, scale, n, starts=pairs.starts, longest=pairs.longest_body
        )
        return Attended(out.transpose(1, 2))
    k, v = (pairs.k, pairs.v) if isinstance(pairs, RewrittenPairs) else pairs.both()
    if n:
        return Attended(attention_n(q, k, v, scale, n).transpose(1, 2))
    if folds(queries.attention, q, k):
        return Attended(attend_folded(q, k, v, scale))
    return Attended(*queries.attention.plain(q, k, v, None))


def attend_visible(
    attention: ModelAttention,
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    visible: Bool[Tensor, "b #h m n"],
    mask: Tensor | None,
    scale: float,
    n: float,
) -> Attended:
    """Compute the attention over the visible slots only. ``mask`` is the model's; its dtype tells
    whether the attention takes boolean or additive masks.
    """
    if n:
        seen = visible.expand(-1, k.shape[1], -1, -1)
        return Attended(attention_n(q, k, v, scale, n, seen).transpose(1, 2))
    if folds(attention, q, k):
        return Attended(attend_folded(q, k, v, scale, visible))
    additive = q.dtype if attention.additive else None
    if mask is not None and mask.dtype != torch.bool:
        additive = mask.dtype
    if splits_heads(attention, q, k):
        return Attended(attend_by_head(q, k, v, scale, for_model(visible, 1, additive)))
    groups = 1 if visible.shape[1] == 1 else q.shape[1] // k.shape[1]
    return Attended(*attention.masked(q, k, v, for_model(visible, groups, additive)))


def choose_by_products(policy: Policy, layer: Layer, span: Pass) -> ByProducts:
    """Choose the by-products to compute in a pass of a prompt whose slots have their budget.
    NOTHING where the stock attention has to compute it: on another device or in another dtype,
    under a mask that is not causal, or if no row loses a pair.
    """
    slots, query = layer.slots, layer.q
    window = policy.reads_window_sums if span.seen == span.end == query.shape[2] else None
    if not (policy.reads_column_sums or window):
        return NOTHING
    blocks = in_blocks(query)
    if not blocks and chosen() != "triton":
        return NOTHING
    if slots.tokens is None or slots.mask is not None:
        return NOTHING
    if bool((slots.tokens >= slots.lengths + span.end - span.seen).all()):
        return NOTHING
    if policy.reads_column_sums or window is None:
        return ByProducts(column_sums=True)
    if not blocks:
        return NOTHING
    weights = window.window_weights(slots, layer.groups)  # of a prompt that comes in one pass
    fits = WORTH <= weights.counts.shape[-1] < query.shape[2]
    return ByProducts(window=weights) if fits else NOTHING


def in_blocks(query: Tensor) -> bool:
    """Return True if Foveate's attention in blocks may compute it: on a CPU, where the blocks are
    as fast as the stock attention. Other devices have faster attention. In half precision the
    blocks, which are computed in float32, take 0.8 to 1.3 times the stock attention's time;
    separate sums take 0.6 to 0.8 more.
    """
    return query.device.type == "cpu" and query.dtype in HALF_OR_SINGLE
