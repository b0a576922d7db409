"""Earlier states of a conversation: stored, or recovered from a cache that evicted nothing."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor

from foveate.cache.pairs import DensePairs
from foveate.chat.answering import Conversation, TurnRecord
from foveate.chat.storage import TurnHeld
from foveate.errors import InvalidInput
from foveate.hf.attach.session import held_share
from foveate.hf.endless import rerotation
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.prompts.messages import Message, media_of


class ForcedTokens(LogitsProcessor):
    """Logits processor that generates these tokens, and then any other."""

    def __init__(self, ids: Int[Tensor, "n"]):
        self._left = ids.tolist()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._left.pop(0) if self._left else 0] = 0.0
        return forced


def pruned(now: Conversation, keep: int) -> Conversation:
    """Free states before turns, except for the latest ``keep``.

    While nothing is evicted, an earlier state keeps everything but its pairs, which are the first
    ones of the current cache.
    """
    complete = _is_complete(now.cache)
    earlier = len(now.turns) - keep
    turns = [
        record if number >= earlier else _shrunk(record, complete)
        for number, record in enumerate(now.turns)
    ]
    return replace(now, turns=tuple(turns))


def _is_complete(cache: DynamicCache | None) -> bool:
    """Return True if every layer can be cropped, and stores every token in full precision."""
    return cache is not None and all(
        type(layer) is FoveateLayer
        and type(layer.pairs) is DensePairs
        and layer.pairs.size == layer.seen
        and not layer.state.tokens.dropped
        for layer in cache.layers
    )


def _is_cropped(before: Conversation, now: Conversation) -> bool:
    """Return True if the pairs of an earlier state are the first ones of the current cache, at the
    same positions.
    """
    if not _is_complete(now.cache):
        return False
    earlier, later = (known_state(state.cache).tokens.position for state in (before, now))
    if earlier is None or later is None:
        return earlier is later
    return torch.equal(earlier.expand(len(later), -1), later[:, : earlier.shape[1]])


def _shrunk(record: TurnRecord, complete: bool) -> TurnRecord:
    before = record.before
    if before is None or (not record.full and complete):
        return record
    if not complete or not _is_complete(before.cache):
        return record._replace(before=None)
    stored = {id(layer.stored): "" for layer in foveate_layers(before.cache)}
    cache = copy.deepcopy(before.cache, stored)  # leaves out the pairs
    for layer in foveate_layers(cache):
        layer.stored = None
    ids = before.ids[:, :0]
    return record._replace(before=replace(before, cache=cache, ids=ids, types={}), full=False)


def new_of(now: Conversation, turn: int) -> tuple[Message, ...]:
    """Return the messages of a turn, without its answer."""
    ends = [record.first for record in now.turns[1:]] + [len(now.messages)]
    return now.messages[now.turns[turn].first : ends[turn] - 1]


def without_state(record: TurnRecord) -> TurnRecord:
    """Return the record of a turn whose tokens were read again together with later ones."""
    return record._replace(start=0, before=None)


def is_stored(now: Conversation, turn: int) -> bool:
    """Return True if ``before_turn`` finds the state without reading again."""
    record = now.turns[turn]
    if not record.first:
        return True
    return record.before is not None and (record.full or _is_cropped(record.before, now))


def before_turn(now: Conversation, turn: int) -> Conversation | None:
    """Return the conversation before a turn; None if it must be read again."""
    record, turns = now.turns[turn], now.turns[:turn]
    before = record.before
    if not record.first:
        return Conversation()
    if before is None or record.full:
        return before and replace(before, turns=turns)
    if not _is_cropped(before, now):
        return None
    cache = copy.deepcopy(before.cache)
    for layer, later in zip(foveate_layers(cache), foveate_layers(now.cache), strict=True):
        layer.stored = _first(later, layer.seen)
    types = {name: row[:, : record.start] for name, row in now.types.items()}
    ids = now.ids[:, : record.start]
    return replace(before, cache=cache, ids=ids, types=types, turns=turns)


def _first(layer: FoveateLayer, count: int) -> DensePairs:
    """Return a copy of the first ``count`` pairs of a layer that stores all of them in order."""
    k, v, columns = layer.pairs.padded()
    return DensePairs(
        k[:, :, :count].clone(), v[:, :, :count].clone(), columns[:, :, :count].clone(), count
    )


def check_pixels(messages: Sequence[Message]) -> None:
    """Raise InvalidInput if images or videos of messages have no pixels."""
    images, videos = media_of(messages)
    if any(set(image) == {"type"} for image in images) or None in videos:
        raise InvalidInput(
            "this needs the images of earlier turns, and a loaded chat has no pixels of them, only "
            "their KV pairs. Say these turns again in a new Chat."
        )


def by_turn(now: Conversation) -> tuple[TurnHeld, ...]:
    """Return what is stored of each turn, of its answer, and of its images."""
    if now.cache is None:
        return ()
    share = held_share(foveate_layers(now.cache))[0].cpu()
    indices = known_state(now.cache).images()  # None if the visual tokens are unknown
    image = torch.full(share.shape, -1, dtype=torch.long, device="cpu")
    if indices is not None:
        image = indices[0][0].cpu()
    ends = [record.start for record in now.turns[1:]] + [len(share)]
    turns = []
    for number, (record, end) in enumerate(zip(now.turns, ends, strict=True)):
        part, runs = share[record.start : end], image[record.start : end]
        each = [part[runs == run] for run in sorted({*runs.tolist()}) if run >= 0]
        if len(each) != sum(map(len, media_of(new_of(now, number)))):  # tiles or frames
            each = [part[runs >= 0]] if each else []
        kept = float(part.mean()) if len(part) else 1.0
        turns.append(TurnHeld(len(part), kept, tuple(float(tokens.mean()) for tokens in each)))
    return tuple(turns)


def next_position(now: Conversation) -> int:
    """Return the position of the next token, which M-RoPE's images leave below its index."""
    if now.cache is None:
        return now.ids.shape[1]
    tokens = known_state(now.cache).tokens
    if tokens.position is not None:
        unread = now.ids.shape[1] - tokens.position.shape[1]
        return rerotation.next_position(now.cache) + unread
    extras = tokens.extras
    offsets = [int(offset.max()) for offset in extras.values() if isinstance(offset, Tensor)]
    return now.ids.shape[1] + max(offsets, default=0)
