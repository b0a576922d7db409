"""The full cache with the evicted positions masked: what a compressed cache must equal.

An attention function of its own, in plain float32 softmax, over transformers' stock DynamicCache.
From the moment that a prompt was compressed, later queries do not see the columns that were not
kept, layer by layer and head by head; they see merged pairs, worked out by the literal
transcription, where the policy merges; and their softmax is a softmax-n where it says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from foveate.cache.pairs import NarrowPairs
from foveate.hf.layer.hooks import named
from foveate.methods.cam import MergeFollowing
from foveate.methods.think import DropChannels
from foveate.policies.protocols import NoMerge
from foveate.stages.merge import MergeNearest
from tests.jitter import WIDER, other_side
from tests.literal import cam, lookm, prefixkv


class Event(NamedTuple):
    """A compression: after column ``end``, layer -> columns kept, bool [b, h, end].

    ``dropped`` are channels, [b, h, d], that keys lack, but for each head's last ``whole`` ones.
    ``pads`` are the columns of padding in front of each row, ``merge`` how the kept pairs take over
    the others (a function of a row's k, v [h, n, d] and kept columns per head), ``n`` of softmax-n.
    """

    end: int
    kept: dict[int, Tensor]
    pads: Sequence[int] = ()
    merge: Callable[..., tuple[Tensor, Tensor]] | None = None
    n: float = 0.0
    dropped: Mapping[int, Tensor] = {}
    whole: int = 0


_events: list[Event] = []
_hidden: dict[int, Tensor] = {}  # of each layer, columns that no query sees there, bool [b, n]
_tied: set[int] = set()  # rows in which some key merges into either of two, by rounding
_keys: dict[int, Tensor] = {}  # of the latest pass, by layer; held, so that no address comes twice


def _attention(module, query, key, value, attention_mask, scaling=None, **more):
    b, hq, m, d = query.shape
    h, n = key.shape[1], key.shape[2]
    layer = module.layer_idx
    stored, expand = getattr(key, LATENTS, ((key, value), None))
    if any(layer in e.kept for e in _events):
        _keys[layer] = stored[0]
    else:  # it may be a layer that reads another's pairs
        same = [i for i, made in _keys.items() if made.data_ptr() == stored[0].data_ptr()]
        layer = same[0] if same else layer
    events = [e for e in _events if layer in e.kept]
    late = [e for e in events if e.merge is not None and e.end <= n - m]
    assert not any(n - m < e.end < n for e in events if e.merge is not None), "one pass, two caches"
    for event in late:
        stored = _merged(event, layer, *stored)
    if late:
        key, value = expand(*stored) if expand else stored
    for event in (e for e in events if layer in e.dropped and e.end <= n - m):
        key = _narrowed(event, layer, key)
    k, v = key.repeat_interleave(hq // h, 1), value.repeat_interleave(hq // h, 1)
    added = 0.0
    if attention_mask is not None and attention_mask.ndim == 2:  # flash attention's
        causal = torch.ones(m, n, dtype=torch.bool).tril(n - m)
        attention_mask = causal & (attention_mask != 0)[:, None, None]
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        added, attention_mask = attention_mask, None  # Mllama's cross-attention
        visible = torch.ones(b, hq, m, n, dtype=torch.bool)
    elif attention_mask is not None:
        visible = attention_mask.expand(b, hq, m, n).clone()
    elif getattr(module, "is_causal", True) and m > 1:
        visible = torch.ones(m, n, dtype=torch.bool).tril(n - m).expand(b, hq, m, n).clone()
    else:
        visible = torch.ones(b, hq, m, n, dtype=torch.bool)
    for i in range(m):
        column = n - m + i
        for event in (e for e in events if e.end <= column):
            kept = event.kept[layer].repeat_interleave(hq // h, 1)
            visible[:, :, i, : event.end] &= kept
    if (hidden := _hidden.get(layer)) is not None:
        visible[..., : hidden.shape[1]] &= ~hidden[:, None, None, :n]
    logits = (query @ k.transpose(2, 3)) * (d**-0.5 if scaling is None else scaling)
    if (cap := more.get("softcap")) is not None:
        logits = cap * (logits / cap).tanh()
    logits = (logits + added).masked_fill(~visible, torch.finfo(logits.dtype).min)
    sink = torch.full((b, hq, m, 1), -torch.inf)  # one more key, with a value of zeros
    if (own := more.get("s_aux")) is not None:
        sink = own.float()[None, :, None, None].expand_as(sink).clone()
    for event in (e for e in events if e.n):
        sink[:, :, max(0, event.end - (n - m)) :] = math.log(event.n)
    weights = torch.cat([logits, sink.to(logits)], -1).softmax(-1)[..., :-1]
    return (weights @ v).transpose(1, 2).contiguous(), None


def _without_evicted(indexer, args, kwargs):
    """Mask for an indexer what events took from its layer, so that it does not choose it."""
    inputs = {**named(indexer.forward, args), **kwargs}
    mask = inputs["attention_mask"]  # [b, queries, columns], boolean or additive
    b, m, n = mask.shape
    gone = torch.zeros(b, m, n, dtype=torch.bool)
    for event in (e for e in _events if indexer.layer_idx in e.kept):
        later = (torch.arange(n - m, n) >= event.end)[None, :, None]
        kept = event.kept[indexer.layer_idx][:, :1, :n]
        gone[..., : event.end] |= later & ~kept
    low = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
    return (), {**inputs, "attention_mask": mask.masked_fill(gone, low)}


LATENTS = "_latents"
"""Attribute of keys that were computed from latents: these, and the function."""


def _expanded(expand, latents, rotary):
    key, value = expand(latents, rotary)
    setattr(key, LATENTS, ((latents, rotary), expand))
    return key, value


def _merged(event: Event, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values in which the kept columns have taken over the others."""
    key, value = key.clone(), value.clone()
    for row, pad in enumerate(event.pads):
        some = torch.arange(pad, event.end)
        if layer in _hidden:  # what was never computed is merged into nothing
            some = some[~_hidden[layer][row, pad : event.end]]
        kept = [head.nonzero()[:, 0].tolist() for head in event.kept[layer][row, :, some]]
        if getattr(event.merge, "by", "") == "cosine" and margin(key[row, :, some], kept) < NEAR:
            _tied.add(row)
        k, v = event.merge(key[row, :, some], value[row, :, some], kept)
        for head, columns in enumerate(kept):
            at = some[columns]
            key[row, head, at], value[row, head, at] = k[head].to(key), v[head].to(value)
    return key, value


NEAR = 2e-6 + WIDER
"""Of two cosines between keys, which may be the higher one on another CPU."""


def margin(k: Tensor, kept: list[list[int]]) -> float:
    """By how much the nearest kept key is nearer than the second, at least, of all that are not
    kept; k [h, n, d]. Two are equally near where keys are alike but for their rotation, and one
    that is not kept stands in the middle between two kept ones: as ends of lines do in layer 0.
    """
    least = math.inf
    for unit, columns in zip(torch.nn.functional.normalize(k.double(), dim=-1), kept, strict=True):
        gone = torch.ones(len(unit), dtype=torch.bool)
        gone[columns] = False
        if bool(gone.any()) and len(columns) > 1:
            best = (unit[gone] @ unit[columns].T).topk(2).values
            least = min(least, float((best[:, 0] - best[:, 1]).min()))
    return least


def tied_rows(rows: int) -> Tensor:
    """Of the latest run on the full cache, the rows [b] in which rounding decides what is merged
    into what.
    """
    found = torch.zeros(rows, dtype=torch.bool)
    found[sorted(_tied)] = True
    return found


def _narrowed(event: Event, layer: int, key: Tensor) -> Tensor:
    """Keys in which the kept columns lack the dropped channels."""
    key = key.clone()
    for row, heads in enumerate(event.kept[layer]):
        for head, kept in enumerate(heads):
            columns = kept.nonzero()[:, 0]
            early = columns[: max(0, len(columns) - event.whole)]
            key[row, head, early] = key[row, head, early] * ~event.dropped[layer][row, head]
    return key


@contextmanager
def oracle(
    model: PreTrainedModel, *events: Event, hidden: Mapping[int, Tensor] | None = None
) -> Iterator[None]:
    """Inside, ``model`` runs on the full cache, and does not see what ``events`` took away, nor, at
    any time, the columns that are ``hidden`` in a layer.

    Its attention keeps its name: some models decide by it what they mask.
    """
    config = model.config.get_text_config(decoder=True)
    stock = AttentionInterface.get_interface
    numbered = {
        module
        for name, module in model.named_modules()
        if hasattr(module, "layer_idx") and any(part.isdigit() for part in name.split("."))
    }

    def get_interface(self, name, default):
        function = stock(self, name, default)

        def attention(module, *args, **kwargs):
            mine = module in numbered and getattr(module, "config", None) is config
            if mine and name == "sdpa":  # which knows neither
                kwargs = {**kwargs, "softcap": None, "s_aux": None}
            return (_attention if mine else function)(module, *args, **kwargs)

        return attention

    AttentionInterface.get_interface = get_interface
    latent = {part: part.expand_kv for part in model.modules() if hasattr(part, "expand_kv")}
    for part, expand in latent.items():
        part.expand_kv = partial(_expanded, expand)
    choosing = [getattr(part, "indexer", None) for part in latent]
    hooks = [
        indexer.register_forward_pre_hook(_without_evicted, with_kwargs=True)
        for indexer in choosing
        if indexer is not None
    ]
    _events[:] = events
    _hidden.update(hidden or {})
    _tied.clear()
    try:
        with other_side():
            yield
    finally:
        AttentionInterface.get_interface = stock
        for part in latent:
            del part.expand_kv
        for hook in hooks:
            hook.remove()
        _events.clear()
        _hidden.clear()
        _keys.clear()


def event_of(cache, rows: list[int] | None = None, now: bool = False) -> Event:
    """What a compressed cache kept of its latest prompt, or of all that it has seen until now; on
    the CPU, as the oracle runs there.
    """
    kept, dropped, end, state = {}, {}, 0, None
    for layer in cache.layers:
        if not hasattr(layer, "pairs"):
            continue
        end, state = layer.seen if now else layer.memory.finished, layer.state
        columns = layer.pairs.columns.cpu()
        mask = torch.zeros(*columns.shape[:2], layer.seen + 1, dtype=torch.bool)
        mask.scatter_(2, columns.clamp_min(-1) % (layer.seen + 1), True)
        mask = mask[:, :, :end]
        kept[layer.model_index] = mask if rows is None else mask[rows]
        if isinstance(layer.pairs, NarrowPairs):
            held = layer.pairs.channels.long().cpu()
            lost = torch.ones(*held.shape[:2], layer.pairs.padded().k.shape[3], dtype=torch.bool)
            lost = lost.scatter(2, held, value=False)
            dropped[layer.model_index] = lost if rows is None else lost[rows]
    pads = [] if state is None or state.tokens.pad is None else state.tokens.pad.tolist()
    merge = None if state is None or now else literal_merge(state.policy.merge)
    n = 0.0 if state is None else state.policy.attend.n
    whole = 0 if state is None else getattr(state.policy.store, "residual", 0)
    return Event(end, kept, pads, merge, n, dropped, whole)


def literal_merge(stage: object) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The slow transcription of what a merge stage does; None if it does nothing."""
    if isinstance(stage, NoMerge | DropChannels):  # the latter: see Event.dropped
        return None
    if isinstance(stage, MergeFollowing):
        assert not stage.sampled

        def add(k: Tensor, v: Tensor, kept: list[list[int]]) -> tuple[list[Tensor], list[Tensor]]:
            heads = list(zip(k, v, kept, strict=True))
            added = [cam.merge(values, at, stage.into)[at] for _, values, at in heads]
            return [keys[at] for keys, _, at in heads], added

        return add
    assert isinstance(stage, MergeNearest), stage

    def merge(k: Tensor, v: Tensor, kept: list[list[int]]) -> tuple[list[Tensor], list[Tensor]]:
        found: tuple[list[Tensor], list[Tensor]] = ([], [])
        for head, columns in enumerate(kept):  # heads may keep different numbers
            one, mine = slice(head, head + 1), [columns]
            if stage.by == "position":
                assert stage.how == "averaged"
                pair = [prefixkv.merge(x[one], columns, "position", k[one]) for x in (k, v)]
            else:
                pair = lookm.merge(k[one], v[one], mine, stage.how)
            for into, merged in zip(found, pair, strict=True):
                into.append(merged[0])
        return found

    merge.by = stage.by  # type: ignore[attr-defined]
    return merge
