"""How much of a conversation is held."""

from __future__ import annotations

from typing import NamedTuple

from transformers import DynamicCache

from foveate.backends.hf.support import foveate_layers


class Held(NamedTuple):
    """What a chat holds: ``tokens`` per KV head and layer on average, answers included, of so many
    ``seen``; ``bytes`` of the compressed layers, and those of the cache ``before`` the latest turn,
    which ``retry`` and ``edit`` go back to.
    """

    tokens: float
    seen: int
    bytes: int
    before: int

    @property
    def share(self) -> float:
        """Of the tokens seen, between 0 and 1."""
        return self.tokens / self.seen if self.seen else 1.0


def held(cache: DynamicCache | None, before: DynamicCache | None) -> Held:
    """What these caches hold: the one of now, and the one that the latest turn went on from."""
    if cache is None:
        return Held(0.0, 0, 0, 0)
    layers = foveate_layers(cache)
    tokens = [float(layer.pairs.counts.double().mean()) for layer in layers]
    return Held(sum(tokens) / len(tokens), layers[0].seen, _bytes(cache), _bytes(before))


def _bytes(cache: DynamicCache | None) -> int:
    return 0 if cache is None else sum(layer.nbytes for layer in foveate_layers(cache))
