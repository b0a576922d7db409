"""The full cache with the evicted positions masked: what a compressed cache must equal.

An attention function of its own, in plain float32 softmax, over transformers' stock DynamicCache.
From the moment that a prompt was compressed, later queries do not see the columns that were not
kept, layer by layer and head by head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class Event(NamedTuple):
    """A compression: after column ``end``, layer -> columns kept, bool [b, h, end]."""

    end: int
    kept: dict[int, Tensor]


_events: list[Event] = []


def _attention(module, query, key, value, attention_mask, scaling=None, **_):
    b, hq, m, d = query.shape
    h, n = key.shape[1], key.shape[2]
    k, v = key.repeat_interleave(hq // h, 1), value.repeat_interleave(hq // h, 1)
    added = 0.0
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
        for event in (e for e in _events if e.end <= column and module.layer_idx in e.kept):
            kept = event.kept[module.layer_idx].repeat_interleave(hq // h, 1)
            visible[:, :, i, : event.end] &= kept
    logits = (query @ k.transpose(2, 3)) * (d**-0.5 if scaling is None else scaling) + added
    weights = logits.masked_fill(~visible, torch.finfo(logits.dtype).min).softmax(-1)
    return (weights @ v).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("oracle", _attention)
ALL_MASK_ATTENTION_FUNCTIONS.register("oracle", sdpa_mask)


@contextmanager
def oracle(model: PreTrainedModel, *events: Event) -> Iterator[None]:
    """Inside, ``model`` runs on the full cache, and does not see what ``events`` took away."""
    config = model.config.get_text_config(decoder=True)
    before = config._attn_implementation
    config._attn_implementation_internal = "oracle"
    _events[:] = events
    try:
        yield
    finally:
        config._attn_implementation_internal = before
        _events.clear()


def event_of(cache, rows: list[int] | None = None) -> Event:
    """What a compressed cache kept of its latest prompt."""
    kept, end = {}, 0
    for layer in cache.layers:
        if not hasattr(layer, "pairs"):
            continue
        end = layer.finished
        columns = layer.pairs.columns
        mask = torch.zeros(*columns.shape[:2], layer.seen + 1, dtype=torch.bool)
        mask.scatter_(2, columns.clamp_min(-1) % (layer.seen + 1), True)
        mask = mask[:, :, :end]
        kept[layer.index] = mask if rows is None else mask[rows]
    return Event(end, kept)
