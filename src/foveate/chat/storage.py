"""Storage of a chat's cache: its size, and trimming between two turns.

A prompt is compressed to the budget before it is answered, and the answer adds to it. Afterwards,
under a budget in bytes, each head drops the same number of its lowest-ranked earlier pairs; those
of the answer stay.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fractions import Fraction
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

_warned: set[str] = set()  # specs of policies that were warned about


class TurnHeld(NamedTuple):
    """Storage of one turn: ``seen`` tokens, and the stored share of them over KV heads and layers.

    ``images`` are the shares of its images and videos, in order; a single one for all of them if
    the model reads an image in several pieces. A chat that follows its template may count earlier
    turns to the latest turn that was read again with them.
    """

    seen: int
    share: float
    images: tuple[float, ...] = ()


class ChatHeld(NamedTuple):
    """Storage of a chat.

    ``tokens`` are stored per KV head and layer on average, answers included, of ``seen`` tokens.
    ``bytes`` is the size of the compressed layers with their spare room. ``before`` is the size of
    the stored caches before the latest ``keep_turns`` turns; it is not part of ``bytes``.
    ``by_turn`` is the storage of each turn.
    """

    tokens: float
    seen: int
    bytes: int
    before: int
    by_turn: tuple[TurnHeld, ...] = ()

    @property
    def share(self) -> float:
        """Stored share of the seen tokens, between 0 and 1."""
        return self.tokens / self.seen if self.seen else 1.0


def measure_storage(
    cache: DynamicCache | None, before: Sequence[DynamicCache | None] = ()
) -> ChatHeld:
    """Return the storage of the current cache, and of those before the latest turns."""
    if cache is None:
        return ChatHeld(0.0, 0, 0, 0)
    layers = foveate_layers(cache)
    return ChatHeld(tokens_of(layers), layers[0].seen, bytes_of(cache), sum(map(bytes_of, before)))


def tokens_of(layers: Sequence[FoveateLayer]) -> float:
    """Return the stored pairs per KV head: the mean over rows, heads and layers, rounded once."""
    counts = [layer.pairs.counts for layer in layers]
    means = [Fraction(int(count.sum()), count.numel()) for count in counts]
    return float(sum(means) / len(means))


def bytes_of(cache: DynamicCache | None) -> int:
    """Return the size of the compressed layers in bytes; 0 without a cache."""
    return 0 if cache is None else sum(layer.nbytes for layer in foveate_layers(cache))


def trim(cache: DynamicCache) -> None:
    """Free a cache's spare room after an answer, and shrink it to a budget in bytes.

    The answer and the pairs that the policy always keeps stay, even if they need more; the log
    ("foveate") then warns once.
    """
    layers = foveate_layers(cache)
    for layer in layers:
        layer.replace_pairs(layer.pairs.fork())
    policy = layers[0].policy
    if policy.amount.kind == "bytes":
        _shrink(layers, int(policy.amount.value), policy)
    for layer in layers:
        layer.ranks = None


def _shrink(layers: Sequence[FoveateLayer], allowed: int, policy: Policy) -> None:
    while (excess := sum(layer.nbytes for layer in layers) - allowed) > 0:
        longest = max(layer.pairs.longest for layer in layers)
        per_pair = (excess + allowed) / max(1, longest)  # bytes of one pair in every head, roughly
        dropped = [_drop_lowest(layer, ceil(excess / per_pair)) for layer in layers]
        if not any(dropped):
            _warn(policy, excess + allowed)
            return


def _drop_lowest(layer: FoveateLayer, count: int) -> bool:
    """Drop the ``count`` lowest-ranked pairs of each head; return False if there were none.

    Pairs of the answer and protected ones (score inf) stay.
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
    """Return each slot's score in the latest compression.

    If the whole prompt fitted the budget, there are no scores. Then keys with a small norm rank
    high (arXiv:2406.11430), which include the sinks.
    """
    if layer.ranks is None:
        norms: Tensor = torch.linalg.vector_norm(k.float(), dim=-1)
        return -norms
    of, scores = (t.to(k.device) for t in layer.ranks)
    by_column = scores.new_full((*columns.shape[:2], layer.seen + 1), -torch.inf)
    by_column.scatter_(
        2, of % (layer.seen + 1), scores
    )  # empty slots (column -1) map to the last column
    return by_column.gather(2, columns % (layer.seen + 1))


def _warn(policy: Policy, stored: int) -> None:
    if policy.spec not in _warned:
        _warned.add(policy.spec)
        logging.getLogger("foveate").warning(
            "budget %s is too small for the latest answer and the pairs that the policy always "
            "keeps: %d bytes stay stored until the next turn. Logged once per policy.",
            policy.amount,
            stored,
        )
