"""Random weights that make every part of a tiny model matter."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .family import TEXT_FROM

SHARPNESS = 1.5
"""Gain of each of the query and the key: attention logits then have a deviation of about 2."""


@torch.no_grad()
def randomise(model: PreTrainedModel, name: str) -> None:
    """Draws every parameter of ``model`` again, reproducibly for a family name.

    Upstream's initialisation (0.02, zero gates, zero position tables) gives flat attention and
    images that do not matter, so that a wrong mask would not show. Matrices get the variance that
    keeps activations at unit scale, queries and keys more, gates are opened, and norms and biases
    are perturbed, so that no parameter is at a neutral value.
    """
    embeddings = {id(weight) for weight in _embedding_weights(model)}
    for path, parameter in sorted(model.named_parameters()):
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{path}".encode()))
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(_value(path, parameter, noise, id(parameter) in embeddings))
    _silence_special_ids(model)


def _value(path: str, parameter: Tensor, noise: Tensor, embedding: bool) -> Tensor:
    leaf = path.rsplit(".", 2)[-2]
    if "gate" in path.rsplit(".", 1)[-1] and parameter.numel() == 1:
        return noise * 0.1 + 1.0
    if leaf in {"q_norm", "k_norm"}:
        # RMSNorm weights are 1 upstream, or 0 where the norm multiplies by 1 + weight (Gemma).
        return parameter + (0.1 * noise + SHARPNESS - 1.0)
    if parameter.dim() == 1:
        return parameter + 0.1 * noise
    if embedding:
        # Gemma multiplies its embeddings by sqrt(hidden); its head may be tied to them as well.
        return noise / math.sqrt(parameter.shape[-1])
    gain = SHARPNESS if leaf in {"q_proj", "k_proj"} else 1.0
    return noise * (gain / math.sqrt(_fan_in(parameter)))


def _fan_in(parameter: Tensor) -> int:
    if parameter.dim() == 3:  # stacked experts and position tables: the last dimension is an input
        return parameter.shape[-1]
    return parameter[0].numel()


def _embedding_weights(model: PreTrainedModel) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            yield module.weight


def _silence_special_ids(model: PreTrainedModel) -> None:
    """Makes greedy decoding never choose padding, a placeholder or an image border."""
    head = model.get_submodule("lm_head").get_parameter("weight")
    if head is not model.get_input_embeddings().get_parameter("weight"):
        head[:TEXT_FROM] = 0.0
