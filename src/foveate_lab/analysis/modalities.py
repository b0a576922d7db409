"""Attention by modality: how much text and visual tokens receive, and within and across kinds."""

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
"""Floor of attention weights; smaller weights are clamped to it."""


class Received(NamedTuple):
    """Attention of the mean text and the mean visual token, relative to a uniform share; NaN
    without any.
    """

    text: Float[Tensor, "b"]
    visual: Float[Tensor, "b"]


class AttentionHistograms(NamedTuple):
    """Histograms of attention weights, each summing to 1, and their divergence.

    ``within`` counts queries and keys of the same kind, ``across`` of different kinds. Bins are
    equal in the logarithm, from 1e-8 to 1. ``divergence`` is Jensen-Shannon's, 0 to 1 bit; NaN if a
    histogram is empty.
    """

    within: Float[Tensor, "b bins"]
    across: Float[Tensor, "b bins"]
    divergence: Float[Tensor, "b"]


def received(
    layers: Sequence[QKV], vision: Bool[Tensor, "b n"], attention_mask: Tensor | None = None
) -> list[Received]:
    """Return the attention that tokens receive relative to a uniform share (LOOK-M Fig. 2). Summed
    over all queries that see a token, mean over heads. The first token of a prompt is left out: it
    is an attention sink.
    """
    return [_received(layer) for layer in layers_of(layers, vision, attention_mask)]


def _received(layer: Layer) -> Received:
    pads = (layer.pos[:, 0] < 0).sum(-1)
    sums = column_sums(layer.q, layer.k, layer.scale, None, pads.tolist()).mean(1)
    pos, vision = layer.pos[:, 0], layer.vision[:, 0]
    # the weight that a uniform query gives to each token it sees
    uniform = (pos >= 0).float() / (pos + 1).clamp_min(1)
    uniform_sums = uniform.flip(-1).cumsum(-1).flip(-1)
    share = sums / uniform_sums.clamp_min(LEAST)
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
    """Return weights of self-attention (text to text, image to image) and of cross-attention. Over
    all heads and the last ``window`` queries (CSP Fig. 1 b and c).
    """
    return [_weights(layer, window, bins) for layer in layers_of(layers, vision, attention_mask)]


def _weights(layer: Layer, window: int, bins: int) -> AttentionHistograms:
    w = min(window, layer.q.shape[2])
    visible = layer.slots.visible(w)
    paid = window_attention(layer.q[:, :, -w:], layer.k, visible, layer.scale).flatten(1, 2)
    same = layer.q_vision[:, -w:, None] == layer.vision[:, 0][:, None]
    visible = visible[:, 0] & (layer.q_pos[:, -w:, None] >= 0)
    within, across = (
        torch.stack(list(_histograms(paid, visible & kind, bins))) for kind in (same, ~same)
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
    """Return the Jensen-Shannon divergence of two distributions, in bits."""
    middle = (p + q) / 2
    return (_bits(p, middle) + _bits(q, middle)) / 2


def _bits(p: Float[Tensor, "b bins"], q: Float[Tensor, "b bins"]) -> Float[Tensor, "b"]:
    """Return the Kullback-Leibler divergence in bits; entries where p is 0 add nothing."""
    return torch.where(p == 0, 0.0, p * (p / q).log2()).sum(-1)
