"""Which tokens the cache holds, over all layers and heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.backends.hf.cache_layer import FoveateLayer


def held_share(layers: Sequence[FoveateLayer]) -> Float[Tensor, "b t"]:
    """Of all KV heads of these layers, the share that holds each token seen."""
    return torch.stack([_held(layer) for layer in layers]).mean(0)


def _held(layer: FoveateLayer) -> Float[Tensor, "b t"]:
    columns = layer.pairs.columns  # -1 where a slot is empty
    held = torch.zeros(*columns.shape[:2], layer.seen + 1, device=columns.device)
    held.scatter_(2, columns % (layer.seen + 1), 1.0)
    return held[..., : layer.seen].mean(1)
