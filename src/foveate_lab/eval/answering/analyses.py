"""The papers' statistics of a prompt, as numbers that a report can draw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache

from foveate.cache.layer import Layer
from foveate.compression.tensors import QKV
from foveate.hf import Recording
from foveate.hf.layer.support import foveate_layers
from foveate.methods.prefixkv import gini
from foveate_lab import analysis

POINTS = 33  # of a Lorenz curve


def analysed(recording: Recording) -> dict[str, Any] | None:
    """Compute statistics of a recorded prompt's first row, layer by layer.

    Returns None if attention is not causal, which the papers' measures assume. Without images,
    comparisons of text with images are missing.

    ``redundancy`` [L h]: MixKV, Fig. 2. ``lorenz`` [L points] and ``gini`` [L]: PrefixKV, Fig. 2
    and 4. ``ncar`` [L]: DAVID, eq. 6. ``received`` [L 2], by text and by images: LOOK-M, Fig. 2.
    ``within`` and ``across`` [L bins], ``divergence`` [L]: CSP, Fig. 1. ``keys`` [n 2]: keys of one
    head in the middle layer on two principal components, for MixKV's Fig. 3.
    """
    if any(layer.slots.mask is not None for layer in recording.layers):
        return None
    layers = [first_row(layer) for layer in recording.layers]
    curves = [curve[0] for curve in analysis.lorenz(layers)]
    figures = {
        "redundancy": rows_of(x[0] for x in analysis.redundancy(layers)),
        "lorenz": rows_of(_thinned(curve) for curve in curves),
        "gini": rows_of(gini(curve) for curve in curves),
        "keys": rows_of(plane(recording.layers[middle(len(layers))].k[0, 0])),
    }
    image = recording.layers[0].slots.image
    if image is None or not bool((image[:1] >= 0).any()):
        return figures
    vision = image[:1, 0] >= 0
    weights = analysis.self_and_cross(layers, vision)
    return {
        **figures,
        "ncar": rows_of(x[0] for x in analysis.ncar(layers, vision)),
        "received": rows_of(torch.cat(x) for x in analysis.received(layers, vision)),
        "within": rows_of(x.within[0] for x in weights),
        "across": rows_of(x.across[0] for x in weights),
        "divergence": rows_of(x.divergence[0] for x in weights),
    }


def kept_places(cache: DynamicCache) -> list[int]:
    """Return the tokens that the first head of the middle layer keeps."""
    layers = foveate_layers(cache)
    columns = layers[middle(len(layers))].pairs.columns[0, 0]
    return [int(x) for x in columns if x >= 0]


def middle(layers: int) -> int:
    """Return the index of the middle layer, which represents all layers in some figures."""
    return layers // 2


def plane(keys: Float[Tensor, "n d"]) -> Float[Tensor, "n 2"]:
    """Project keys on their first two principal components."""
    centred = keys.double() - keys.double().mean(0)
    directions = torch.linalg.svd(centred, full_matrices=False).Vh[:2]
    # The sign of a singular vector is arbitrary: its largest coordinate is made positive, so that
    # all machines agree.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    projected: Tensor = centred @ (directions * largest.sign()).T
    return projected


def first_row(layer: Layer) -> QKV:
    """Return the first row, queries scaled so that the default scale gives this layer's logits."""
    return layer.q[:1] * (layer.scale * layer.q.shape[-1] ** 0.5), layer.k[:1], layer.v[:1]


def _thinned(curve: Float[Tensor, "n"]) -> Float[Tensor, "points"]:
    last, at = len(curve) - 1, curve.device
    indices = torch.linspace(0, last, POINTS, dtype=torch.float32, device=at).round().long()
    return curve[indices]


def rows_of(tensors: Iterable[Tensor]) -> list[Any]:
    """Convert tensors to lists rounded to four digits; NaN becomes None."""
    return [short(tensor.detach().double().cpu().tolist()) for tensor in tensors]


def short(value: Any) -> Any:
    """Round a number, or nested lists of numbers, to four digits; NaN becomes None."""
    if isinstance(value, list):
        return [short(item) for item in value]
    return float(f"{value:.4g}") if value == value else None
