"""Attention that a golden file gives, as a layer whose softmax it is."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.cache.slots import Slots


def layer_of(
    attention: Tensor,
    heads: int,
    pos: Tensor | None = None,
    q_pos: Tensor | None = None,
    values: Tensor | None = None,
    image: Tensor | None = None,
    tokens: Tensor | None = None,
    **more: object,
) -> Layer:
    """Keys are the unit vectors, so queries of log p have p for their softmax.

    Args:
        attention: [hq, m, n], rows that add up to one.
        heads: KV heads.
        pos: [h, n] positions of the slots; 0, 1, ... by default.
        q_pos: [m] positions of the queries; the last ones by default.
        values: [h, n, e].
        image: [n], the image of each slot, -1 for text.
        tokens: [1], the budget.
        **more: further fields of the layer.
    """
    _, m, n = attention.shape
    q = attention.clamp_min(1e-30).log()[None]
    k = torch.eye(n).expand(1, heads, n, n).contiguous()
    pos = torch.arange(n).expand(heads, n) if pos is None else pos
    q_pos = torch.arange(n - m, n) if q_pos is None else q_pos
    images = None if image is None else image.expand(1, heads, n)
    q_image = None if image is None else image[None, -m:]
    slots = Slots(pos=pos[None], q_pos=q_pos[None], image=images, q_image=q_image, tokens=tokens)
    v = k if values is None else values[None]
    return Layer(q=q, k=k, v=v, slots=slots, scale=1.0, **more)
