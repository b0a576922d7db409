"""Functions that compute the attention of a pass over a cache layer's pairs, by phase.

| pass | function |
|---|---|
| reads a prompt that will be compressed | :func:`read_prompt` |
| reads an answer | :func:`answer` |
| reads an answer's token in exchange for one pair of each head | :func:`answer_in_place` |
| ends a prompt, with draft tokens behind it | :func:`with_drafts` |
| reads more after a prompt, and is discarded (probe pass) | :func:`read_again` |
| belongs to another layer, without pairs of its own (shared KV) | :func:`attend_shared_kv` |

The mask is exact: the attention gathers the model's mask at the original column of each slot.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.cache.pairs import DensePairs, Padded, Pairs, RewrittenPairs, rewritten
from foveate.cache.slots import Slots
from foveate.compression.layer_memory import Phase
from foveate.errors import UnsupportedCache
from foveate.hf.attention.absorbed import attend_absorbed
from foveate.hf.attention.by_products import (
    NOTHING,
    Attended,
    ByProducts,
    ModelAttention,
    Output,
    without_backward,
)
from foveate.hf.attention.dispatch import (
    Queries,
    choose_by_products,
    compute_attention,
    in_blocks,
)
from foveate.hf.attention.masks import PassView
from foveate.hf.layer.cache_layer import FoveateLayer, is_whole
from foveate.hf.layer.state import Expansion
from foveate.ops.column_sums import attention_of_one


def attend(
    layer: FoveateLayer, attention: ModelAttention, query: Tensor, own_mask: Any, scale: float
) -> Output:
    """Compute the attention over the layer's pairs; compress at the prompt's end. ``own_mask`` is
    the mask that the model's attention received.
    """
    layer.linked, is_full = True, not (layer.stored or layer.pairs).compressed
    if layer.drafts is not None:
        return with_drafts(layer, layer.drafts, attention, query, own_mask, scale)
    b, tokens = query.shape[0], query.shape[2]
    if layer.state.computed is not None:
        own_mask, tokens = _before_pruning(layer, own_mask, tokens)
    view = layer.state.look(own_mask, b, tokens, layer.seen, query.device)
    collected = layer.state.collected
    if collected is not None and collected.q is not None and layer.state.reread is None:
        collected.q[layer.ordinal] = query.detach()
    facts = partial(layer.state.facts, view)
    queries = Queries(query, view, scale, attention, layer.seen, facts, layer.computed)
    out = _dispatch(layer, queries)
    layer.computed = None
    return out if is_full else (without_backward(out[0]), out[1])


def _before_pruning(layer: FoveateLayer, own_mask: Any, tokens: int) -> tuple[Any, int]:
    """Return the model's mask and the number of tokens of the pass before pruning dropped some."""
    computed = layer.state.computed
    if computed is None or layer.state.reread is not None:
        return own_mask, tokens
    return computed.own_mask(own_mask), computed.inputs


def _dispatch(layer: FoveateLayer, queries: Queries) -> Output:
    state = layer.state
    if state.reread is not None:
        return read_again(layer, queries)
    if state.shares_kv:
        layer.attended = layer.pairs
    if layer.at.phase is not Phase.ANSWERING:
        return read_prompt(layer, queries)
    if state.policy.rewrites and (pairs := _replaceable_pairs(layer, queries)) is not None:
        out: Output = answer_in_place(layer, pairs, queries)
        return out
    return answer(layer, queries)


def _queries(
    layer: FoveateLayer,
    attention: ModelAttention,
    q: Tensor,
    view: PassView,
    scale: float,
) -> Queries:
    facts = partial(layer.state.facts, view)
    return Queries(q, view, scale, attention, layer.seen, facts, layer.computed)


def read_prompt(layer: FoveateLayer, queries: Queries) -> Output:
    """Compute the attention of a prompt's tokens, with the score's by-products; then pass both to
    the policy.
    """
    # only the model's own attention has gradients; and if it is not SDPA, ours would differ
    traced_back, pairs = torch.is_grad_enabled() and queries.q.requires_grad, layer.per_head()
    ours = queries.attention.is_sdpa and not traced_back and not pairs.compressed
    layer_view, by_products = _policy_layer(layer, queries, pairs, ours)
    if layer.model_index in layer.state.needed_by_next:
        layer.state.before = layer_view.per_head
    out = compute_attention(queries, pairs, layer.state.policy.attend.n, by_products)
    _read(layer, replace(layer_view, column_sums=out.column_sums, window_sums=out.window_sums))
    return out.output, out.weights


def answer(layer: FoveateLayer, queries: Queries) -> Output:
    """Compute the attention of an answer's tokens, and apply the policy's decode rule."""
    policy, out = layer.state.policy, _absorbed(layer, queries)
    if out is None:
        pairs = layer.per_head()
        out = compute_attention(queries, pairs, policy.attend.n)
        if policy.compresses_again:
            layer.in_order()
            view, _ = _policy_layer(layer, queries, pairs, ours=False)
            _read(layer, replace(view, column_sums=out.column_sums, window_sums=out.window_sums))
    if policy.prunes:
        _prune(layer)
    return out.output, out.weights


def _absorbed(layer: FoveateLayer, queries: Queries) -> Attended | None:
    """Compute the attention over stored latents; None if keys and values have to be computed."""
    policy = layer.state.policy
    if layer.expansion is None or policy.compresses_again:  # a score reads keys and values
        return None
    pairs = layer.stored or layer.pairs
    return attend_absorbed(queries, pairs, layer.expansion, policy.attend.n)


def with_drafts(
    layer: FoveateLayer,
    drafts: tuple[Tensor, Tensor],
    attention: ModelAttention,
    query: Tensor,
    own_mask: Any,
    scale: float,
) -> Output:
    """Compute the attention of the prompt's last tokens, which compresses it; then that of the
    draft tokens over the kept pairs. ``drafts``: keys and values of the draft tokens.
    """
    m, seen = query.shape[2], layer.seen + drafts[0].shape[2]
    split = m - drafts[0].shape[2]
    own_mask, tokens = _before_pruning(layer, own_mask, query.shape[2])
    state, rows, device = layer.state, query.shape[0], query.device
    mask = state.look(own_mask, rows, tokens, seen, device).mask
    end = -drafts[0].shape[2]
    cut = None if mask is None else mask[:, :, :end, : layer.seen]
    rest = None if mask is None else mask[:, :, end:]
    layer.drafts, attention = None, attention.with_masks()
    view = state.look(cut, rows, tokens + end, layer.seen, device)
    before, _ = _dispatch(layer, _queries(layer, attention, query[:, :, :split], view, scale))
    layer.computed = None
    layer.append(*drafts)
    view = state.look(rest, rows, -end, layer.seen, device)
    queries = _queries(layer, attention, query[:, :, split:], view, scale)
    after = compute_attention(queries, layer.per_head(), layer.softmax_n)
    return without_backward(torch.cat([before, after.output], dim=1)), None


def attend_shared_kv(
    layer: FoveateLayer,
    attention: ModelAttention,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    own_mask: Any,
    scale: float,
    expansion: Expansion | None = None,
) -> Output:
    """Compute the attention of another layer of the model that has no pairs of its own and reads
    this layer's, as they were when this layer attended. The policy scores with this layer's queries
    only. ``expansion`` is that of the other layer, if the pairs are latents.
    """
    pairs = layer.attended
    if pairs is not None and expansion is not None:
        pairs = layer.expanded(pairs, expansion)
        keys, values, _ = pairs.padded()
    if (pairs is None or is_whole(pairs)) and keys.shape[2] == layer.seen:
        return attention.plain(query, keys, values, own_mask)
    if pairs is None or pairs.counts.shape[0] != query.shape[0]:
        raise UnsupportedCache(
            f"layer {layer.model_index} is read by other layers, and draft tokens arrived in the "
            "pass that completes its prompt. Use this model without assisted decoding."
        )
    rows, new = query.shape[0], query.shape[2]
    view = layer.state.look(own_mask, rows, new, layer.seen, query.device)
    queries = _queries(layer, attention, query, view, scale)
    out = compute_attention(queries, pairs, layer.softmax_n)
    return without_backward(out.output), out.weights


# The policy's part: it branches on tensor values, which torch.compile cannot trace


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _policy_layer(
    layer: FoveateLayer, queries: Queries, pairs: Pairs, ours: bool
) -> tuple[Layer, ByProducts]:
    """Return the pass as the policy sees it, with each row's budget, and the by-products to
    compute: NOTHING unless ``ours``, i.e. Foveate's attention may compute it. Layers that store
    every column share one slots object.

    ``pairs`` are those that the attention reads.
    """
    with layer.watch.running(queries.q.device):
        expanded = None if layer.expansion is None else _expanded(pairs)
        layer_view = _build_layer(layer, queries, layer.padded(), expanded)
        by_products = NOTHING
        if ours:
            by_products = choose_by_products(layer.state.policy, layer_view.per_head, layer.at)
        return layer_view, by_products


def _expanded(pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Return the keys and values that attention computed from latents, for scores."""
    k, v, _ = pairs.padded()
    return k.detach(), v.detach()


def _build_layer(
    layer: FoveateLayer,
    queries: Queries,
    stored: Padded,
    expanded: tuple[Tensor, Tensor] | None,
) -> Layer:
    state, q, (k, v, columns) = layer.state, queries.q, stored
    if queries.computed is None:
        slots = state.slots(columns, queries.view, q.shape[2])
    else:
        facts, images = queries.facts(), state.images()
        slots = queries.computed.slots(columns, facts, images, queries.view.mask)
    if slots.tokens is None:
        slots = _with_budget(layer, slots, columns, queries)
    hidden = state.link.hidden_states.pop(layer.model_index, None)
    return Layer(
        q=q.detach(),
        k=k.detach(),
        v=v.detach(),
        slots=slots,
        scale=queries.scale,
        ordinal=layer.ordinal,
        model_index=layer.model_index,
        depth=state.depth,
        expanded=expanded,
        # draft tokens are behind the prompt's, and no queries of this layer
        hidden=None if hidden is None else hidden[:, : q.shape[2]],
    )


def _with_budget(layer: FoveateLayer, slots: Slots, columns: Tensor, queries: Queries) -> Slots:
    """Add each row's budget to the slots. While a prompt is read it is equal for all layers, except
    for a budget in bytes, which depends on the form of a layer's pairs.
    """
    reading, form = layer.state.reading, partial(layer.form, queries.q.shape[1])
    budgeted = reading.with_budget(slots, layer.at, layer.ordinal, form)
    all_slots, by_form = queries.view.all_slots, layer.state.policy.amount.kind == "bytes"
    is_shared = all_slots is not None and all_slots[1] is slots and not by_form
    if is_shared and layer.at.phase is not Phase.ANSWERING:
        queries.view.all_slots = columns, budgeted
    return budgeted


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _read(layer: FoveateLayer, layer_view: Layer) -> None:
    with layer.watch.running(layer_view.q.device):
        layer.read(layer_view)


# Decoding in place: each new pair replaces one pair of each head


def _replaceable_pairs(layer: FoveateLayer, queries: Queries) -> DensePairs | RewrittenPairs | None:
    """Return the layer's pairs if this token's pair must replace one of each head, at any slot;
    else None.
    """
    pairs, kept = layer.pairs, layer.memory.kept_by_each
    if kept is None or not isinstance(pairs, DensePairs | RewrittenPairs):
        return None
    if pairs.longest != kept + 1 or not pairs.compressed:
        return None
    alone = not layer.state.shares_kv and not layer.state.leaders
    plain = queries.attention.is_sdpa and queries.sees_all and alone
    return pairs if plain else None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def answer_in_place(
    layer: FoveateLayer, stored: DensePairs | RewrittenPairs, queries: Queries
) -> Output:
    """Compute the attention, and vacate the slot in each head that its weights choose."""
    pairs = rewritten(stored)
    layer.replace_pairs(pairs)
    stored_pairs, expanded = Padded(pairs.k, pairs.v, pairs.unordered), None
    if (expansion := layer.expansion) is not None:
        expanded = expansion(pairs.k, pairs.v)
    k, v = expanded or (pairs.k, pairs.v)
    out, sums = attention_of_one(queries.q, k, v, queries.scale)
    with torch.no_grad():
        layer_view = _build_layer(layer, queries, stored_pairs, expanded)
        layer_view = replace(layer_view, column_sums=sums.detach())
        pairs.vacate(layer.state.reading.one_out(layer_view, layer.at))
    return out.to(queries.q.dtype).transpose(1, 2), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _prune(layer: FoveateLayer) -> None:
    """Keep the slots that a pruning rule chooses by the number of slots only."""
    state = layer.state
    if state.tokens.pad is None or _vacate_slot(layer):
        return
    lengths = layer.seen - state.tokens.pad.to(layer.pairs.counts.device)
    with layer.watch.running(lengths.device):
        kept = state.reading.prune(layer.ordinal, layer.at, lengths, layer.pairs)
        if kept is not None:
            layer.keep(kept)


def _vacate_slot(layer: FoveateLayer) -> bool:
    """Vacate the slot of at most one pair per head, the same in all heads. Return False if that is
    not possible, and nothing has changed.
    """
    state, pairs = layer.state, layer.pairs
    if state.pad is None or not isinstance(pairs, DensePairs | RewrittenPairs):
        return False
    leave = state.reading.leave(layer.ordinal, layer.at, state.pad, pairs.longest)
    if not leave:
        return leave is not None
    if len(leave) > 1 or state.shares_kv or not layer.policy.store.exact:
        return False
    pairs = rewritten(pairs)
    layer.replace_pairs(pairs)
    pairs.vacate_nth(leave.start)
    layer.memory.state = {}  # a pruning rule never reads it
    return True


# Probe passes: they read more after a prompt, and their pairs are discarded


def read_again(layer: FoveateLayer, queries: Queries) -> Output:
    """Compute the attention over the prompt and a probe pass, and pass it to the score, if one
    reads it.
    """
    pairs, reread = layer.per_head(), layer.state.reread
    out = compute_attention(queries, pairs, 0.0, _probe_by_products(layer, queries))
    layer_view = _probe_layer(layer, queries, pairs, out.column_maxima)
    if layer_view is None or reread is None:
        return out.output, out.weights
    if reread.outputs is None:
        layer.state.reading.show_reread(layer_view)
        return out.output, out.weights
    output = out.output if out.output.requires_grad else out.output.detach().requires_grad_()
    reread.outputs[layer.ordinal] = layer_view, output
    return output, out.weights


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _probe_by_products(layer: FoveateLayer, queries: Queries) -> ByProducts:
    """Return the by-products of a probe pass: column maxima if it is causal, without padding and
    without gradients.
    """
    state, q = layer.state, queries.q
    is_scored = state.reread is not None and state.reread.order is not None
    if not (is_scored and layer.policy.reads_column_maxima and queries.attention.is_sdpa):
        return NOTHING
    traced_back = torch.is_grad_enabled() and q.requires_grad
    if traced_back or not in_blocks(q) or state.pad != 0 or not queries.facts().causal:
        return NOTHING
    return ByProducts(column_maxima=True)


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _probe_layer(
    layer: FoveateLayer, queries: Queries, pairs: Pairs, maxima: Tensor | None
) -> Layer | None:
    """Return the probe pass as the policy sees it, with the prompt's slots before its own; None if
    no score reads it.
    """
    unread, reread = layer.memory.unread, layer.state.reread
    if unread is None or reread is None or reread.order is None:
        return None
    k, v, _ = layer.padded()
    pos = unread.slots.pos[..., : k.shape[2] - queries.q.shape[2]]
    order = reread.order.to(pos.device)
    own = torch.where(order < 0, -1, order + pos[:, 0, -1:] + 1)
    own_slots = own[:, None].expand(*pos.shape[:2], -1)
    image = unread.slots.image
    if image is not None:  # a probe pass reads text only
        image = F.pad(image[..., : pos.shape[2]], (0, own.shape[1]), value=-1)
    return replace(
        unread,
        q=queries.q.detach(),
        k=k.detach(),
        v=v.detach(),
        slots=Slots(pos=torch.cat([pos, own_slots.to(pos)], dim=-1), q_pos=own, image=image),
        expanded=_expanded(pairs) if layer.expansion is not None else None,
        column_maxima=maxima,
        residual_norm=layer.state.link.residual_norms.get(layer.model_index),
    )
