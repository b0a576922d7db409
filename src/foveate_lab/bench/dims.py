"""Shapes of language models that are measured with random weights.

Weights do not affect time and memory, except where lengths differ between heads or layers: random
attention is nearly uniform, so such lengths come out nearly equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)
from transformers.initialization import no_init_weights

from foveate.errors import InvalidInput, ModelNotFound


@dataclass(frozen=True)
class Dims:
    """Shape of a decoder, from the published configuration of the model it is named after."""

    kind: type[PreTrainedConfig]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int


DIMS = {
    "llava-1.5-7b": Dims(LlamaConfig, 32, 4096, 32, 32, 11008, 32064),
    "llava-1.5-13b": Dims(LlamaConfig, 40, 5120, 40, 40, 13824, 32064),
    "qwen2-vl-7b": Dims(Qwen2Config, 28, 3584, 28, 4, 18944, 152064),
    "internvl3-8b": Dims(Qwen2Config, 28, 3584, 28, 4, 18944, 151674),
}


def build(
    name: str, device: torch.device, dtype: torch.dtype, layers: int | None = None
) -> PreTrainedModel:
    """Build a model of a named shape with random weights, or only its first ``layers``.

    Raises:
        ModelNotFound: a name that is not in :data:`DIMS`.
        InvalidInput: more layers than the model has.
    """
    return of_shape(shape(name, layers), device, dtype)


def shape(name: str, layers: int | None = None) -> Dims:
    """Return the shape of a name, cut to its first ``layers``; raises as :func:`build`."""
    if name not in DIMS:
        near = get_close_matches(name, DIMS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelNotFound(f"no shape named {name!r}. Known: {', '.join(DIMS)}.{hint}")
    dims = DIMS[name]
    if layers is None:
        return dims
    if not 1 <= layers <= dims.layers:
        raise InvalidInput(f"{name} has {dims.layers} layers, not {layers}.")
    return replace(dims, layers=layers)


def toy(dims: Dims) -> Dims:
    """Return a shape of a few thousand weights, with multi-head or grouped-query attention as
    given.
    """
    heads = 2 if dims.heads == dims.kv_heads else 4
    return replace(
        dims, layers=2, hidden=16 * heads, heads=heads, kv_heads=2, intermediate=64, vocabulary=128
    )


def of_shape(dims: Dims, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Build a decoder of a shape with random weights."""
    with no_init_weights(), torch.device(device):
        auto: Any = AutoModelForCausalLM
        model: PreTrainedModel = auto.from_config(config_of(dims), dtype=dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.uniform_(-0.02, 0.02)
    return model.eval()  # type: ignore[no-untyped-call, no-any-return]


def config_of(dims: Dims) -> PreTrainedConfig:
    """Return the configuration of a decoder of a shape, for contexts of any length."""
    kind: Any = dims.kind
    config: PreTrainedConfig = kind(
        num_hidden_layers=dims.layers,
        hidden_size=dims.hidden,
        num_attention_heads=dims.heads,
        num_key_value_heads=dims.kv_heads,
        intermediate_size=dims.intermediate,
        vocab_size=dims.vocabulary,
        max_position_embeddings=2**20,
    )
    return config
