"""How attention treats text and images: what each receives, and what stays within its own kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.compression.tensors import QKV, layers_of
from foveate.ops.column_sums import column_sums
from foveate.ops.window_attention import window_attention

LEAST = 1e-8
"""Attention weights below it count as this much."""


class Received(NamedTuple):
    """What the mean text token and the mean visual token get, in even shares; NaN if none is."""

    text: Float[Tensor, "b"]
    visual: Float[Tensor, "b"]


class AttentionHistograms(NamedTuple):
    """Histograms of attention weights, each adding up to 1, and how far apart they are.

    ``within`` is of queries and keys of the same kind, ``across`` of different ones; the bins are
    equal in the logarithm, from 1e-8 to 1. ``divergence`` is Jensen and Shannon's, 0 to 1 bit; NaN
    where one of them is empty.
    """

    within: Float[Tensor, "b bins"]
    across: Float[Tensor, "b bins"]
    divergence: Float[Tensor, "b"]


def received(
    layers: Sequence[QKV], vision: Bool[Tensor, "b n"], attention_mask: Tensor | None = None
) -> list[Received]:
    """LOOK-M Fig. 2: the attention that a token gets from all queries that see it, mean over heads,
    over what it would get if each query looked at all it sees alike. The first token of a prompt,
    where heads rest that look for nothing, is left out.
    """
    return [_received(layer) for layer in layers_of(layers, vision, attention_mask)]


def _received(layer: Layer) -> Received:
    pads = (layer.pos[:, 0] < 0).sum(-1)
    sums = column_sums(layer.q, layer.k, layer.scale, None, pads.tolist()).mean(1)
    pos, vision = layer.pos[:, 0], layer.vision[:, 0]
    # what a query gives to each token that it sees
    each = (pos >= 0).float() / (pos + 1).clamp_min(1)
    even = each.flip(-1).cumsum(-1).flip(-1)
    share = sums / even.clamp_min(LEAST)
    counted = pos > 0
    text, visual = (_mean(share, counted & kind) for kind in (~vision, vision))
    return Received(text, visual)


def _mean(values: Float[Tensor, "b n"], chosen: Bool[Tensor, "b n"]) -> Float[Tensor, "b"]:
    return (values * chosen).sum(-1) / chosen.sum(-1)


def self_and_cross(
    layers: Sequence[QKV],
    vision: Bool[Tensor, "b n"],
    attention_mask: Tensor | None = None,
    *,
    window: int = 32,
    bins: int = 48,
) -> list[AttentionHistograms]:
    """CSP Fig. 1 b and c: weights of self-attention (text to text, image to image) and of
    cross-attention, of all heads and the last ``window`` queries.
    """
    return [_weights(layer, window, bins) for layer in layers_of(layers, vision, attention_mask)]


def _weights(layer: Layer, window: int, bins: int) -> AttentionHistograms:
    w = min(window, layer.q.shape[2])
    seen = layer.slots.visible(w)
    paid = window_attention(layer.q[:, :, -w:], layer.k, seen, layer.scale).flatten(1, 2)
    same = layer.q_vision[:, -w:, None] == layer.vision[:, 0][:, None]
    seen = seen[:, 0] & (layer.q_pos[:, -w:, None] >= 0)
    within, across = (
        torch.stack(list(_histograms(paid, seen & kind, bins))) for kind in (same, ~same)
    )
    return AttentionHistograms(within, across, divergence(within, across))


def _histograms(
    paid: Float[Tensor, "b hq w n"], chosen: Bool[Tensor, "b w n"], bins: int
) -> Iterator[Float[Tensor, "bins"]]:
    low = float(torch.tensor(LEAST, dtype=torch.float32, device="cpu").log10())
    for weights, mask in zip(paid, chosen, strict=True):
        logs = weights[:, mask].clamp_min(LEAST).log10()
        counts = torch.histc(logs, bins, low, 0.0)
        yield counts / counts.sum()


def divergence(p: Float[Tensor, "b bins"], q: Float[Tensor, "b bins"]) -> Float[Tensor, "b"]:
    """Jensen and Shannon's divergence of two distributions, in bits."""
    middle = (p + q) / 2
    return (_bits(p, middle) + _bits(q, middle)) / 2


def _bits(p: Float[Tensor, "b bins"], q: Float[Tensor, "b bins"]) -> Float[Tensor, "b"]:
    """Kullback and Leibler's divergence; what p lacks adds nothing."""
    return torch.where(p == 0, 0.0, p * (p / q).log2()).sum(-1)
