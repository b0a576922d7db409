"""Weights that a model computes with, those of PEFT's adapters apart.

PEFT puts a module around each adapted one, in a ``PeftModel`` as with ``model.load_adapter``. Its
modules are told by what they have, as PEFT is an optional package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from foveate.hf.model.devices import StoredWeights

AdapterWeights = dict[str, Tensor | str]
"""One adapter's weights by path, with the kind and the scaling of each adapted module as text."""

_WRAPPED = ("base_layer", "original_module")
"""Where PEFT's modules keep the module that they stand for."""


def is_adapted(names: Iterable[str]) -> bool:
    """Return whether PEFT has adapted a model whose parameters have these names."""
    return any(f".{part}." in f".{name}" for name in names for part in _WRAPPED)


def applied_weights(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, AdapterWeights]]:
    """Return a model's own weights, by their names as without PEFT, and those of each adapter that
    is active and not merged.
    """
    own: dict[str, Tensor] = {}
    adapters: dict[str, AdapterWeights] = {}
    _collect(StoredWeights.of(model), "", own, adapters)
    return own, adapters


def _collect(
    weights: StoredWeights,
    path: str,
    own: dict[str, Tensor],
    adapters: dict[str, AdapterWeights],
) -> None:
    """Add a module's weights to the model's own, named as without PEFT, or to its adapters'."""
    own |= {f"{path}{name}": weight for name, weight in weights.own}
    children = dict(weights.children())
    wrapped = next((name for name in _WRAPPED if name in children), None)
    module: Any = weights.module
    if wrapped is None or not hasattr(module, "active_adapters"):
        for name, child in children.items():
            _collect(child, f"{path}{name}.", own, adapters)
        return
    for adapter in _applied(module):
        weights_here = _of_adapter(module, adapter, children, wrapped)
        if weights_here:
            adapters.setdefault(adapter, {}).update(
                {f"{path}{k}": x for k, x in weights_here.items()}
            )
    _collect(children[wrapped], path, own, adapters)


def _applied(module: Any) -> list[str]:
    """Return the adapters that a forward of PEFT's module adds to the module it stands for. A
    merged adapter is part of that module's weights.
    """
    if module.disable_adapters or getattr(module, "merged", False):
        return []
    return list(module.active_adapters)


def _of_adapter(
    module: Any, adapter: str, children: Mapping[str, StoredWeights], wrapped: str
) -> AdapterWeights:
    """Return an adapter's weights in one module, by their path without the adapter's name, with the
    module's kind and scaling; empty if it has none there.
    """
    weights_here: AdapterWeights = {}
    for name, child in children.items():
        for path, weight in () if name == wrapped else child.all():
            parts = [name, *path.split(".")]
            if adapter in parts:
                weights_here[".".join(part for part in parts if part != adapter)] = weight
    if weights_here:
        scaling = getattr(module, "scaling", None)
        scale = scaling.get(adapter) if isinstance(scaling, dict) else None
        weights_here["scaling"] = f"{type(module).__name__} {scale}"
    return weights_here
