"""Random weights that make every part of a tiny model matter."""

from __future__ import annotations

import math
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from .sizes import TEXT_FROM

SHARPNESS = 1.5
"""Gain of each of the query and the key, so that attention is not flat."""

_QUERIES_KEYS = {"q_proj", "k_proj", "query", "key", "q_b_proj", "wq", "wk"}


@torch.no_grad()
def randomise(model: nn.Module, name: str) -> None:
    """Draws every parameter again, reproducibly for a name.

    Upstream's small values give flat attention and images that do not matter. Matrices get the
    variance that keeps activations at unit scale, gates are opened, and vectors are perturbed.
    """
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    for path, parameter in sorted(model.named_parameters()):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{path}".encode()))
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(_value(path, parameter, noise, id(parameter) in embeddings))
    _silence_special_ids(model)


def _value(path: str, parameter: Tensor, noise: Tensor, embedding: bool) -> Tensor:
    leaf, last = (["", *path.split(".")])[-2:]
    if "gate" in last and parameter.numel() == 1:
        return noise * 0.1 + 1.0
    if leaf in {"q_norm", "k_norm"}:
        return parameter + (0.1 * noise + SHARPNESS - 1.0)
    if parameter.dim() <= 1:
        return parameter + 0.1 * noise
    if embedding:
        # Some multiply their embeddings by sqrt(hidden); the head may be tied to them as well.
        return noise / math.sqrt(parameter.shape[-1])
    if "A_log" in last or "dt_bias" in last:
        return parameter + 0.1 * noise
    gain = SHARPNESS if leaf in _QUERIES_KEYS else 1.0
    return noise * (gain / math.sqrt(_fan_in(parameter)))


def _fan_in(parameter: Tensor) -> int:
    if parameter.dim() == 3:  # stacked experts and position tables: the last dimension is an input
        return parameter.shape[-1]
    return parameter[0].numel()


def _silence_special_ids(model: Any) -> None:
    """Makes greedy decoding not choose padding, a placeholder or a border."""
    head = model.get_output_embeddings()
    inputs = model.get_input_embeddings()
    weight = getattr(head, "weight", None)
    if weight is not None and weight is not getattr(inputs, "weight", None):
        weight[:TEXT_FROM] = 0.0
