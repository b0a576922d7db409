"""How much of a conversation is stored, and what is between two turns: no spare room, and no more
than a budget in bytes.

A prompt is compressed to the budget before it is answered, and the answer comes on top. So the
lowest-ranked earlier pairs leave after it, of every head as many; the answer itself stays.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from foveate.compression.pipeline import Kept
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.support import foveate_layers
from foveate.policies.policy import Policy

_warned: set[str] = set()  # specs of policies


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


def trim(cache: DynamicCache) -> None:
    """Give back the spare room of a cache whose answer has ended, and bring it within a budget in
    bytes. Where the answer and what the policy always keeps need more, these stay, and the log
    ("foveate") says so once.
    """
    layers = foveate_layers(cache)
    for layer in layers:
        layer.replace_pairs(layer.pairs.fork())
    policy = layers[0].policy
    if policy.amount.kind == "bytes":
        _fit(layers, int(policy.amount.value), policy)
    for layer in layers:
        layer.ranks = None


def _fit(layers: Sequence[FoveateLayer], allowed: int, policy: Policy) -> None:
    while (excess := sum(layer.nbytes for layer in layers) - allowed) > 0:
        longest = max(layer.pairs.longest for layer in layers)
        of_one = (excess + allowed) / max(1, longest)  # bytes of one pair of every head, about
        gone = [_drop(layer, ceil(excess / of_one)) for layer in layers]
        if not any(gone):
            _warn(policy, excess + allowed)
            return


def _drop(layer: FoveateLayer, count: int) -> bool:
    """Drop the ``count`` lowest-ranked pairs of each head that came before the answer and are not
    protected; return whether there were any.
    """
    k, v, columns = layer.pairs.padded()
    scores = _scores(layer, k, columns)
    earlier = (columns >= 0) & (columns < layer.memory.finished) & (scores < torch.inf)
    if not bool(earlier.any()):
        return False
    order = scores.masked_fill(~earlier, torch.inf).argsort(dim=-1, stable=True)
    leaving = earlier & (order.argsort(dim=-1) < count)
    mask, memory = (columns >= 0) & ~leaving, layer.memory
    memory.state = memory.grown(k.shape[2])
    memory.compact(mask)
    memory.kept = mask.sum(-1)
    layer.keep(Kept(mask, None, k, v))
    return True


def _scores(
    layer: FoveateLayer, k: Float[Tensor, "b h n d"], columns: Int[Tensor, "b h n"]
) -> Float[Tensor, "b h n"]:
    """Return each slot's score of the latest compression. Where the prompt fitted whole, nothing
    was scored: keys of a small norm rank high then (arXiv:2406.11430), among them the sinks.
    """
    if layer.ranks is None:
        norms: Tensor = torch.linalg.vector_norm(k.float(), dim=-1)
        return -norms
    of, scores = (t.to(k.device) for t in layer.ranks)
    by_column = scores.new_full((*columns.shape[:2], layer.seen + 1), -torch.inf)
    by_column.scatter_(2, of % (layer.seen + 1), scores)  # empty slots have column -1: the last
    return by_column.gather(2, columns % (layer.seen + 1))


def _warn(policy: Policy, stored: int) -> None:
    if policy.spec not in _warned:
        _warned.add(policy.spec)
        logging.getLogger("foveate").warning(
            "budget %s is smaller than the newest answer needs together with what the policy "
            "always keeps: %d bytes stay stored until the next turn is read. Said once.",
            policy.amount,
            stored,
        )
