"""Layers for the stages' tests, whole or in passes."""

from __future__ import annotations

from dataclasses import replace

import torch

from foveate.cache.layer import Layer
from foveate.cache.slots import Slots

SLOTS = ("pos", "q_pos", "image", "spot", "q_image", "mask", "tokens")


def changed(layer, **facts):
    """The layer with other facts, of its own or of its slots."""
    of_slots = {name: facts.pop(name) for name in SLOTS if name in facts}
    return replace(layer, slots=replace(layer.slots, **of_slots), **facts)


def layer_of(q, k, v=None, *, pads=None, scale=0.5, **facts):
    """The layer of a prompt whose rows have ``pads`` columns of padding in front."""
    (b, _, m, _), (h, n) = q.shape, k.shape[1:3]
    columns = torch.arange(n) - torch.tensor(pads or [0] * b)[:, None]
    slots = Slots(
        pos=columns[:, None].expand(b, h, n).contiguous(),
        q_pos=columns[:, n - m :],
        **{name: facts.pop(name) for name in SLOTS if name in facts},
    )
    return Layer(q=q, k=k, v=k if v is None else v, slots=slots, scale=scale, **facts)


def random_layer(lengths=(12,), *, h=2, g=2, d=4, m=None, seed=0, **facts):
    """Normal deviates; ``m`` queries, of all tokens by default."""
    generator = torch.Generator().manual_seed(seed)
    b, n = len(lengths), max(lengths)
    q = torch.randn(b, h * g, n if m is None else m, d, generator=generator)
    k, v = (torch.randn(b, h, n, d, generator=generator) for _ in "kv")
    return layer_of(q, k, v, pads=[n - length for length in lengths], **facts)
