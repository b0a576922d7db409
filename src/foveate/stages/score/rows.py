"""Rows of the attention matrix, and what the query heads of a KV head have in common."""

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
    """Of ``m`` queries, ``ROWS`` at a time."""
    return (slice(a, min(a + ROWS, m)) for a in range(0, m, ROWS))


def seen(layer: Layer, some: slice) -> Bool[Tensor, "b #h r n"]:
    """Which slots each of these queries sees; padded queries see none, whatever the model's mask
    says.
    """
    return layer.slots.visible_to(some) & (layer.q_pos[:, some] >= 0)[:, None, :, None]


def times_seen(layer: Layer) -> Int[Tensor, "b #h n"]:
    """How many of the layer's queries see each slot."""
    return reduce(add, (seen(layer, some).sum(2) for some in blocks(layer.q.shape[2])))


def rows(layer: Layer) -> Iterator[tuple[slice, Float[Tensor, "b h g r n"]]]:
    """What the layer's queries pay to every slot, in float32; zeros for padded queries."""
    for some in blocks(layer.q.shape[2]):
        visible = seen(layer, some)
        yield some, window_attention(layer.q[:, :, some], layer.k, visible, layer.scale)


Reduction = Literal["mean", "max"]


def over_group(scores: Float[Tensor, "b h g n"], how: Reduction) -> Float[Tensor, "b h n"]:
    """Mean or maximum over the query heads that share a KV head."""
    if how == "max":
        return scores.amax(2)
    first, *others = scores.unbind(2)  # few: mean would share them out to threads
    return reduce(Tensor.add_, others, first.clone()).div_(len(others) + 1)
