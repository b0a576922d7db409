"""Rows of the attention matrix, and the reduction over the query heads of a KV head."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Literal

from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.ops.window_attention import window_attention

ROWS = 128


def blocks(m: int) -> Iterator[slice]:
    """Iterate over ``m`` queries, ``ROWS`` at a time."""
    return (slice(a, min(a + ROWS, m)) for a in range(0, m, ROWS))


def seen(layer: Layer, block: slice) -> Bool[Tensor, "b #h r n"]:
    """Mark the slots that each of some queries sees.

    Padded queries see none, whatever the model's mask allows.
    """
    return layer.slots.visible_to(block) & (layer.q_pos[:, block] >= 0)[:, None, :, None]


def times_seen(layer: Layer) -> Int[Tensor, "b #h n"]:
    """Count the layer's queries that see each slot."""
    return reduce(add, (seen(layer, block).sum(2) for block in blocks(layer.q.shape[2])))


def rows(layer: Layer) -> Iterator[tuple[slice, Float[Tensor, "b h g r n"]]]:
    """Iterate over blocks of queries, with their attention to every slot.

    It is in float32; zero for padded queries.
    """
    for block in blocks(layer.q.shape[2]):
        visible = seen(layer, block)
        yield block, window_attention(layer.q[:, :, block], layer.k, visible, layer.scale)


Reduction = Literal["mean", "max"]


def over_group(scores: Float[Tensor, "b h g n"], how: Reduction) -> Float[Tensor, "b h n"]:
    """Reduce scores over the query heads that share a KV head, by mean or maximum."""
    if how == "max":
        return scores.amax(2)
    first, *others = scores.unbind(2)  # few heads: mean(2) would distribute them over threads
    return reduce(Tensor.add_, others, first.clone()).div_(len(others) + 1)
