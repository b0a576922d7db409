"""Settings of each layer of a model: a configuration may give its layers different values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedConfig

from foveate.errors import UnsupportedModel


def layer_settings(config: PreTrainedConfig, name: str) -> list[Any]:
    """Return a setting's value in every layer; None where it has none. transformers raises if a
    setting that differs between layers is read from the configuration itself.
    """
    layers = getattr(config, "per_layer_config", None)  # releases before it have one value for all
    if layers is None:
        layers = [config] * getattr(config, "num_hidden_layers", 1)
    return [getattr(layer, name, None) for layer in layers]


def shared_setting(config: PreTrainedConfig, name: str, layers: Sequence[int]) -> Any:
    """Return the value of a setting that these layers share.

    Raises:
        UnsupportedModel: they have different ones.
    """
    values = layer_settings(config, name)
    first, *others = dict.fromkeys(values[layer] for layer in layers)
    if others:
        raise UnsupportedModel(
            f"the compressed layers differ in {name} ({first}, {', '.join(map(str, others))}), "
            "and one value is needed for all of them. Choose a method without scores of heads."
        )
    return first
