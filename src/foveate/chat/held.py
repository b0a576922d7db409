"""How much of a conversation is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transformers import DynamicCache

from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.support import foveate_layers


class ChatHeld(NamedTuple):
    """What a chat stores: ``tokens`` per KV head and layer on average, answers included, of so many
    ``seen``; ``bytes`` of the compressed layers, spare room included. ``before`` are the bytes of
    the cache before the latest turn, which ``retry`` and ``edit`` go back to: they are not in
    ``bytes``, and 0 with ``keep_turns=0``.
    """

    tokens: float
    seen: int
    bytes: int
    before: int

    @property
    def share(self) -> float:
        """Of the tokens seen, between 0 and 1."""
        return self.tokens / self.seen if self.seen else 1.0


def held(cache: DynamicCache | None, before: DynamicCache | None) -> ChatHeld:
    """Return what these caches store: the current one, and the one before the latest turn."""
    if cache is None:
        return ChatHeld(0.0, 0, 0, 0)
    layers = foveate_layers(cache)
    return ChatHeld(tokens_of(layers), layers[0].seen, bytes_of(cache), bytes_of(before))


def tokens_of(layers: Sequence[FoveateLayer]) -> float:
    """Return pairs per KV head, on average over rows, heads and layers."""
    return sum(float(layer.pairs.counts.double().mean()) for layer in layers) / len(layers)


def bytes_of(cache: DynamicCache | None) -> int:
    """Return the bytes of the compressed layers; 0 where there is no cache yet."""
    return 0 if cache is None else sum(layer.nbytes for layer in foveate_layers(cache))
