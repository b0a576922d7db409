"""One ranking for all heads of a layer, by position.

Later layers can read it from the layer's notes, whatever slots they hold.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.ops.window_attention import window_attention
from foveate.stages.score.attention_rows import rows, times_seen

By = Literal["last", "all"]


def paid_by_last(
    layer: Layer, among: Bool[Tensor, "b h n"] | None = None
) -> Float[Tensor, "b h n"]:
    """Return the last query's attention to every slot, averaged over a KV head's query heads.

    With ``among`` the softmax is over the marked slots alone.
    """
    visible = layer.slots.visible(1)
    if among is not None:
        visible = visible & among[:, :, None]
    return window_attention(layer.q[:, :, -1:], layer.k, visible, layer.scale).mean((2, 3))


def received(layer: Layer, by: By) -> Float[Tensor, "b h n"]:
    """Return the attention that each slot receives.

    ``by`` "last" is that of the last query, "all" the mean over the queries that see the slot.
    """
    if by == "last":
        return paid_by_last(layer)
    total = layer.k.new_zeros(layer.pos.shape, dtype=torch.float32)
    for _, paid in rows(layer):
        total += paid.mean(2).sum(2)
    return total / times_seen(layer).clamp_min(1)


def by_position(layer: Layer, values: Float[Tensor, "b h n"]) -> Float[Tensor, "b t"]:
    """Return the mean over heads of each token's slots; an evicted slot counts as zero."""
    ordered = values.new_zeros(values.shape[0], int(layer.lengths.max()))
    index = layer.pos.clamp_min(0).flatten(1)
    return ordered.scatter_add_(1, index, (values * layer.valid).flatten(1)) / values.shape[1]


def of_slots(layer: Layer, by_pos: Shaped[Tensor, "b t"]) -> Shaped[Tensor, "b h n"]:
    """Return the value of each slot's token; at padding it is meaningless."""
    index = layer.pos.clamp(0, by_pos.shape[1] - 1)
    return by_pos.gather(1, index.flatten(1)).view_as(layer.pos)
