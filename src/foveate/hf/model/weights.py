"""Weights that a model computes with, separated from those of PEFT's adapters; and a digest of
them.

PEFT wraps each adapted module, in a ``PeftModel`` as with ``model.load_adapter``. Its wrappers are
recognised by their attributes, as PEFT is an optional package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import BFloat16
from torch import Tensor, nn

from foveate.hf.model.devices import StoredWeights

EACH = 64  # numbers of each parameter that are hashed
PLAIN = (torch.float32, torch.bfloat16)

AdapterWeights = dict[str, Tensor | str]
"""One adapter's weights by path, with the kind and the scaling of each adapted module as text."""

_WRAPPED = ("base_layer", "original_module")
"""Names of the wrapped module in PEFT's modules."""


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


def weights_digest(model: nn.Module) -> str:
    """Hash the largest of the first ``EACH`` numbers of every parameter, rounded to bfloat16: a
    model has the same digest in float32 and in bfloat16. Active adapters count. Empty for float16
    weights, which round differently, and for quantised or offloaded ones.

    Not cached, because writing to weights through ``.data`` leaves no trace.
    """
    weights = _parameters(model)
    if any(weight.dtype not in PLAIN or weight.is_meta for weight in weights):
        return ""
    if not (weights := [weight for weight in weights if weight.numel()]):
        return ""
    vector = torch.empty(len(weights), dtype=torch.bfloat16, device="cpu")
    for device in dict.fromkeys(weight.device for weight in weights):
        indices = [index for index, weight in enumerate(weights) if weight.device == device]
        vector[indices] = _largest([weights[index] for index in indices]).cpu()
    raw = vector.view(torch.int16).numpy().tobytes()
    return hashlib.sha256(raw).hexdigest()[:16]


def _parameters(model: nn.Module) -> list[Tensor]:
    """Return the parameters that the model computes with, sorted by path, tied ones once."""
    named = sorted(model.named_parameters())
    offloaded = any(weight.is_meta for _, weight in named)
    if offloaded or not is_adapted(name for name, _ in named):
        return [weight for _, weight in named]
    own, adapters = applied_weights(model)
    first: dict[int, tuple[str, Tensor]] = {}
    groups: list[Mapping[str, Tensor | str]] = [own, *adapters.values()]
    for weights in groups:
        for path, weight in weights.items():
            if isinstance(weight, nn.Parameter):
                first.setdefault(id(weight), (path, weight))
    return [weight for _, weight in sorted(first.values(), key=itemgetter(0))]


@torch.no_grad()
def _largest(weights: Sequence[Tensor]) -> BFloat16[Tensor, "n"]:
    """Return the largest absolute value of each weight's first numbers: rounding may make two
    equal, but never changes their order. All weights go through each operation together, as a model
    has hundreds of them.
    """
    first = [weight.flatten()[:EACH] for weight in weights]
    sizes = torch.tensor([len(weight) for weight in first], dtype=torch.long, device="cpu")
    within = torch.arange(EACH, device="cpu").minimum(sizes[:, None] - 1)  # of short ones: last
    indices = (sizes.cumsum(0) - sizes)[:, None] + within
    numbers = torch.cat(first).to(torch.bfloat16).abs()
    return numbers[indices.to(numbers.device)].amax(1)
