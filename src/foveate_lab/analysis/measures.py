"""Redundancy, importance, diversity, concentration and fusion of a prompt's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scored
from foveate.compression.tensors import QKV, layers_of
from foveate.methods.david import ncar as _ncar
from foveate.methods.mixkv import MixDiversity
from foveate.methods.mixkv import diversity as _diversity
from foveate.methods.mixkv import redundancy as _redundancy
from foveate.methods.prefixkv import gini as _gini
from foveate.methods.prefixkv import priority
from foveate.stages.score import ColumnSums, HeadMean, WindowAttention
from foveate.stages.score.window import Pool

Mask = Tensor | None


def redundancy(layers: Sequence[QKV], attention_mask: Mask = None) -> list[Float[Tensor, "b h"]]:
    """Return the mean cosine of distinct keys, by pairs, per KV head, at least 0 (MixKV eq. 4)."""
    by_layer = [_redundancy(layer.k, layer.valid) for layer in _layers(layers, attention_mask)]
    return [r.clamp_min(0.0) for r in by_layer]


def diversity(layers: Sequence[QKV], attention_mask: Mask = None) -> list[Float[Tensor, "b h n"]]:
    """Return minus each key's similarity to the mean of the normalised keys (MixKV section 3.2)."""
    return [_diversity(layer.k, layer.valid) for layer in _layers(layers, attention_mask)]


def importance(
    layers: Sequence[QKV],
    attention_mask: Mask = None,
    *,
    window: int = 32,
    kernel: int = 5,
    pool: Pool = "avg",
) -> list[Float[Tensor, "b h n"]]:
    """Return pooled attention from the last ``window`` queries plus the scaled norm of the values
    (MixKV eq. 2). Defined for the tokens before the window.
    """
    attention = WindowAttention(window=window, kernel=kernel, pool=pool)
    score = MixDiversity(of=attention, window=window, mix="importance")
    return [score(layer).values for layer in _layers(layers, attention_mask)]


def lorenz(layers: Sequence[QKV], attention_mask: Mask = None) -> list[Float[Tensor, "b n"]]:
    """Return the share of a layer's attention on its o most important tokens, o = 1 ... n (PrefixKV
    section 3.2). In a padded row it is 1 from the row's own length on.
    """
    return [priority(_scored(layer)) for layer in _layers(layers, attention_mask)]


def gini(layers: Sequence[QKV], attention_mask: Mask = None) -> list[Float[Tensor, "b"]]:
    """Return the Gini coefficient of each layer's importance (PrefixKV section 3.2). 0: all tokens
    matter alike; near 1: a single token has all of the importance.
    """
    coefficients = []
    for layer in _layers(layers, attention_mask):
        curves = priority(_scored(layer))
        lengths = layer.lengths.tolist()
        coefficients.append(
            torch.stack([_gini(c[:n]) for c, n in zip(curves, lengths, strict=True)])
        )
    return coefficients


def ncar(
    layers: Sequence[QKV],
    vision: Bool[Tensor, "b n"],
    attention_mask: Mask = None,
    *,
    window: int = 32,
) -> list[Float[Tensor, "b"]]:
    """Return attention from the last ``window`` queries to visual tokens, relative to uniform
    attention (DAVID eq. 6). Zero without images.
    """
    score = WindowAttention(window=window)
    return [
        _ncar(score(layer).parts["attention"], layer.vision & layer.valid, layer.valid)
        for layer in layers_of(layers, vision, attention_mask)
    ]


def _layers(layers: Sequence[QKV], attention_mask: Mask) -> list[Layer]:
    return layers_of(layers, None, attention_mask)


def _scored(layer: Layer) -> Scored:
    """Return a layer with PrefixKV's importance, no token protected."""
    sums = ColumnSums()
    score = HeadMean(of=sums)
    observed = replace(layer, state=sums.observe(layer))
    scores = score(observed)
    marked = scores._replace(values=scores.values.masked_fill(~layer.valid, -torch.inf))
    return Scored(layer, marked, scores.values, layer.lengths)
