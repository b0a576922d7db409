"""The ways in which a pass attends to what a cache layer holds.

| when | way |
|---|---|
| the pass reads a prompt that is to be compressed | :func:`read_prompt` |
| it is of an answer | :func:`answer` |
| where one pair leaves for each that comes | :func:`answer_in_place` |
| it holds a prompt's end and drafted tokens beyond | :func:`with_drafts` |
| it reads more after a prompt, and does not stay | :func:`read_again` |
| it is another layer's, without pairs of its own (shared KV) | :func:`attend_shared_kv` |

The exact form: the attention function gathers the mask's columns through the original column of
each slot.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.cache.pairs import DensePairs, RewrittenPairs, rewritten
from foveate.cache.slots import Slots
from foveate.compression.between_passes import Phase
from foveate.errors import UnsupportedCache
from foveate.hf.attention.by_products import NOTHING, ModelAttention, Output, ByProducts, without_backward
from foveate.hf.attention.dispatch import Queries, compute_attention, in_blocks, requested_by_products
from foveate.hf.attention.masks import PassView
from foveate.hf.layer.cache_layer import FoveateLayer, is_whole
from foveate.ops.column_sums import attention_of_one


def attend(
    layer: FoveateLayer, attention: ModelAttention, query: Tensor, own_mask: Any, scale: float
) -> Output:
    """Attention over what the layer holds; at the prompt's end, compression. ``own_mask`` is what
    the model's attention takes.
    """
    layer.linked, whole = True, not (layer.held or layer.pairs).compressed
    if layer.drafts is not None:
        return with_drafts(layer, layer.drafts, attention, query, own_mask, scale)
    b, given = query.shape[0], query.shape[2]
    if layer.state.computed is not None:
        own_mask, given = _of_given(layer, own_mask, given)
    view = layer.state.look(own_mask, b, given, layer.seen, query.device)
    made = layer.state.made
    if made is not None and made.q is not None and layer.state.reread is None:
        made.q[layer.ordinal] = query.detach()
    facts = partial(layer.state.facts, view)
    queries = Queries(query, view, scale, attention, layer.seen, facts, layer.computed)
    out = _way(layer, queries)
    layer.computed = None
    return out if whole else (without_backward(out[0]), out[1])


def _of_given(layer: FoveateLayer, own_mask: Any, tokens: int) -> tuple[Any, int]:
    """The model's own mask, and how many tokens were given, where only some are computed."""
    computed = layer.state.computed
    if computed is None or layer.state.reread is not None:
        return own_mask, tokens
    return computed.own_mask(own_mask), computed.inputs


def _way(layer: FoveateLayer, queries: Queries) -> Output:
    state = layer.state
    if state.reread is not None:
        return read_again(layer, queries)
    if state.shares_kv:
        layer.attended = layer.pairs
    if layer.at.phase is not Phase.ANSWERING:
        return read_prompt(layer, queries)
    if state.policy.rewrites and (held := _leaves_one(layer, queries)) is not None:
        out: Output = answer_in_place(layer, held, queries)
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
    """Attention of a prompt's tokens, with what the score wants made on the way; then the policy
    sees the pass.
    """
    # the model's own attention knows gradients, and other attentions than SDPA
    traced_back, pairs = (
        torch.is_grad_enabled() and queries.q.requires_grad,
        layer.held or layer.pairs,
    )
    ours = queries.attention.is_sdpa and not traced_back and not pairs.compressed
    shown, requested = _shown(layer, queries, ours)
    if layer.model_index in layer.state.asks_before:
        layer.state.before = shown
    out = compute_attention(queries, pairs, layer.state.policy.attend.n, requested)
    _read(layer, replace(shown, column_sums=out.column_sums, window_sums=out.window_sums))
    return out.output, out.weights


def answer(layer: FoveateLayer, queries: Queries) -> Output:
    """Attention of an answer's tokens, with what the rule says while decoding."""
    policy = layer.state.policy
    out = compute_attention(queries, layer.held or layer.pairs, policy.attend.n)
    if policy.compresses_again:
        layer.in_order()
        shown, _ = _shown(layer, queries, ours=False)
        _read(layer, replace(shown, column_sums=out.column_sums, window_sums=out.window_sums))
    elif policy.prunes:
        _prune(layer)
    return out.output, out.weights


def with_drafts(
    layer: FoveateLayer,
    drafts: tuple[Tensor, Tensor],
    attention: ModelAttention,
    query: Tensor,
    own_mask: Any,
    scale: float,
) -> Output:
    """Attention of the prompt's last tokens, which compresses it; then that of drafted tokens,
    whose keys and values are ``drafts``, over what was kept.
    """
    m, whole = query.shape[2], layer.seen + drafts[0].shape[2]
    split = m - drafts[0].shape[2]
    own_mask, given = _of_given(layer, own_mask, query.shape[2])
    state, rows, device = layer.state, query.shape[0], query.device
    mask = state.look(own_mask, rows, given, whole, device).mask
    end = -drafts[0].shape[2]
    cut = None if mask is None else mask[:, :, :end, : layer.seen]
    rest = None if mask is None else mask[:, :, end:]
    layer.drafts, attention = None, attention.with_masks()
    view = state.look(cut, rows, given + end, layer.seen, device)
    before, _ = _way(layer, _queries(layer, attention, query[:, :, :split], view, scale))
    layer.computed = None
    layer.append(*drafts)
    view = state.look(rest, rows, -end, layer.seen, device)
    queries = _queries(layer, attention, query[:, :, split:], view, scale)
    after = compute_attention(queries, layer.pairs, layer.softmax_n)
    return without_backward(torch.cat([before, after.output], dim=1)), None


def attend_shared_kv(
    layer: FoveateLayer,
    attention: ModelAttention,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    own_mask: Any,
    scale: float,
) -> Output:
    """Attention of another layer of the model that has no pairs of its own and reads these, to what
    they were when this one attended. The policy goes by this layer's queries.
    """
    pairs = layer.attended
    if (pairs is None or is_whole(pairs)) and keys.shape[2] == layer.seen:
        return attention.plain(query, keys, values, own_mask)
    if pairs is None or pairs.counts.shape[0] != query.shape[0]:
        raise UnsupportedCache(
            f"layer {layer.model_index} is read by other layers, and drafted tokens arrived in "
            "the pass that completes its prompt. Use this model without assisted decoding."
        )
    rows, new = query.shape[0], query.shape[2]
    view = layer.state.look(own_mask, rows, new, layer.seen, query.device)
    queries = _queries(layer, attention, query, view, scale)
    out = compute_attention(queries, pairs, layer.softmax_n)
    return without_backward(out.output), out.weights


# The policy's part; numbers decide what happens, so there is nothing to trace


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _shown(layer: FoveateLayer, queries: Queries, ours: bool) -> tuple[Layer, ByProducts]:
    """What the policy sees of a pass, with each row's budget; and what the attention is to make on
    its way, if that is ``ours`` to do. Layers that hold every column share one object of slots.
    """
    with layer.watch.running(queries.q.device):
        shown = _layer(layer, queries, *layer.padded())
        return shown, requested_by_products(
            layer.state.policy, shown, layer.at
        ) if ours else NOTHING


def _layer(layer: FoveateLayer, queries: Queries, k: Tensor, v: Tensor, columns: Tensor) -> Layer:
    state, q = layer.state, queries.q
    if queries.computed is None:
        slots = state.slots(columns, queries.view, q.shape[2])
    else:
        facts, images = queries.facts(), state.images()
        slots = queries.computed.slots(columns, facts, images, queries.view.mask)
    if slots.tokens is None:
        slots = _with_budget(layer, slots, columns, queries)
    return Layer(
        q=q.detach(),
        k=k.detach(),
        v=v.detach(),
        slots=slots,
        scale=queries.scale,
        ordinal=layer.ordinal,
        model_index=layer.model_index,
        depth=state.depth,
    )


def _with_budget(layer: FoveateLayer, slots: Slots, columns: Tensor, queries: Queries) -> Slots:
    """The slots with each row's budget; while a prompt is read it is the same for all layers, but
    for a budget in bytes, which goes by the form of a layer's pairs.
    """
    reading, form = layer.state.reading, partial(layer.form, queries.q.shape[1])
    budgeted = reading.with_budget(slots, layer.at, layer.ordinal, form)
    whole, by_form = queries.view.all_slots, layer.state.policy.amount.kind == "bytes"
    alike = whole is not None and whole[1] is slots and not by_form
    if alike and layer.at.phase is not Phase.ANSWERING:
        queries.view.all_slots = columns, budgeted
    return budgeted


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _read(layer: FoveateLayer, shown: Layer) -> None:
    with layer.watch.running(shown.q.device):
        layer.read(shown)


# Decoding in place: one pair of each head leaves for each that comes


def _leaves_one(layer: FoveateLayer, queries: Queries) -> DensePairs | RewrittenPairs | None:
    """The pairs, where this token's makes one of each head leave, wherever it stands."""
    pairs, kept = layer.pairs, layer.memory.kept_by_each
    if kept is None or not isinstance(pairs, DensePairs | RewrittenPairs):
        return None
    if pairs.longest != kept + 1 or not pairs.compressed:
        return None
    plain = queries.attention.is_sdpa and queries.sees_all and not layer.state.shares_kv
    return pairs if plain else None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def answer_in_place(
    layer: FoveateLayer, held: DensePairs | RewrittenPairs, queries: Queries
) -> Output:
    """Attention whose weights say which pair of each head leaves."""
    pairs = rewritten(held)
    layer.put(pairs)
    out, paid = attention_of_one(queries.q, pairs.k, pairs.v, queries.scale)
    with torch.no_grad():
        shown = _layer(layer, queries, pairs.k, pairs.v, pairs.unordered)
        shown = replace(shown, column_sums=paid.detach())
        pairs.vacate(layer.state.reading.one_out(shown, layer.at))
    return out.to(queries.q.dtype).transpose(1, 2), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _prune(layer: FoveateLayer) -> None:
    """Keeps the slots that the rule says, without looking at anything but their number."""
    state = layer.state
    if state.tokens.pad is None or _left_in_place(layer):
        return
    lengths = layer.seen - state.tokens.pad.to(layer.pairs.counts.device)
    with layer.watch.running(lengths.device):
        kept = state.reading.prune(layer.ordinal, layer.at, lengths, layer.pairs)
        if kept is not None:
            layer.hold(kept)


def _left_in_place(layer: FoveateLayer) -> bool:
    """Whether at most one pair leaves each head, the same in all; then it has."""
    state, pairs = layer.state, layer.pairs
    if state.pad is None or not isinstance(pairs, DensePairs | RewrittenPairs):
        return False
    leave = state.reading.leave(layer.ordinal, layer.at, state.pad, pairs.longest)
    if not leave:
        return leave is not None
    if len(leave) > 1 or state.shares_kv or not layer.policy.store.exact:
        return False
    pairs = rewritten(pairs)
    layer.put(pairs)
    pairs.vacate_nth(leave.start)
    layer.memory.state = {}  # which nobody reads any more
    return True


# A pass that reads more after a prompt: what it appends does not stay


def read_again(layer: FoveateLayer, queries: Queries) -> Output:
    """Attention over the prompt and the pass, at which the score looks on, if one does."""
    out = compute_attention(queries, layer.pairs, 0.0, _wanted_again(layer, queries))
    shown, reread = _shown_again(layer, queries, out.column_maxima), layer.state.reread
    if shown is None or reread is None:
        return out.output, out.weights
    if reread.outputs is None:
        layer.state.reading.show_reread(shown)
        return out.output, out.weights
    output = out.output if out.output.requires_grad else out.output.detach().requires_grad_()
    reread.outputs[layer.ordinal] = shown, output
    return output, out.weights


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _wanted_again(layer: FoveateLayer, queries: Queries) -> ByProducts:
    """What the attention is to make on its way: where it is causal, without padding, and no
    gradients are asked for.
    """
    state, q = layer.state, queries.q
    shown = state.reread is not None and state.reread.order is not None
    if not (shown and layer.policy.reads_column_maxima and queries.attention.is_sdpa):
        return NOTHING
    traced_back = torch.is_grad_enabled() and q.requires_grad
    if traced_back or not in_blocks(q) or state.pad != 0 or not queries.facts().causal:
        return NOTHING
    return ByProducts(column_maxima=True)


@torch.compiler.disable  # type: ignore[untyped-decorator]
@torch.no_grad()
def _shown_again(layer: FoveateLayer, queries: Queries, most: Tensor | None) -> Layer | None:
    """The pass as the policy sees it, which has the prompt's slots before the pass's own; None if
    no score looks on.
    """
    unread, reread = layer.memory.unread, layer.state.reread
    if unread is None or reread is None or reread.order is None:
        return None
    k, v, _ = layer.padded()
    pos = unread.slots.pos[..., : k.shape[2] - queries.q.shape[2]]
    order = reread.order.to(pos.device)
    own = torch.where(order < 0, -1, order + pos[:, 0, -1:] + 1)
    beside = own[:, None].expand(*pos.shape[:2], -1)
    image = unread.slots.image
    if image is not None:  # what is read is text
        image = F.pad(image[..., : pos.shape[2]], (0, own.shape[1]), value=-1)
    return replace(
        unread,
        q=queries.q.detach(),
        k=k.detach(),
        v=v.detach(),
        slots=Slots(pos=torch.cat([pos, beside.to(pos)], dim=-1), q_pos=own, image=image),
        column_maxima=most,
        residual_norm=layer.state.link.residual_norms.get(layer.model_index),
    )
