"""Rows of the attention matrix, and what the query heads of a KV head have in common."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from foveate.core.layer import Layer
from foveate.ops.window_attention import window_attention

ROWS = 128


def blocks(m: int) -> Iterator[slice]:
    """Of ``m`` queries, ``ROWS`` at a time."""
    return (slice(a, min(a + ROWS, m)) for a in range(0, m, ROWS))


def seen(layer: Layer) -> Bool[Tensor, "b #h m n"]:
    """Which slots each query sees; padded queries see none, whatever the model's mask says."""
    return layer.slots.visible(layer.q.shape[2]) & (layer.q_pos >= 0)[:, None, :, None]


def rows(layer: Layer) -> Iterator[tuple[slice, Float[Tensor, "b h g r n"]]]:
    """What the layer's queries pay to every slot, in float32; zeros for padded queries."""
    visible = seen(layer)
    for some in blocks(layer.q.shape[2]):
        yield some, window_attention(layer.q[:, :, some], layer.k, visible[:, :, some], layer.scale)


Reduction = Literal["mean", "max"]


def over_group(scores: Float[Tensor, "b h g n"], how: Reduction) -> Float[Tensor, "b h n"]:
    """Mean or maximum over the query heads that share a KV head."""
    if how == "max":
        return scores.amax(2)
    first, *others = scores.unbind(2)  # few: mean would share them out to threads
    return reduce(Tensor.add_, others, first.clone()).div_(len(others) + 1)
