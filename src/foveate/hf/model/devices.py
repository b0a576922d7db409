"""The device of a model's computation, and its weights, also if accelerate has offloaded them.

accelerate leaves an offloaded weight on the meta device, without data. The hook of its module
(``_hf_hook``) has the device that computes and a map of the stored weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from foveate.errors import UnsupportedModel


def input_device(model: PreTrainedModel) -> torch.device:
    """Return the device for a model's inputs: that of its first weight, or the one that computes
    with it if accelerate has offloaded it.

    Raises:
        UnsupportedModel: the weights are on the meta device and no hook loads them.
    """
    device = _computing_device(model)
    if device is not None:
        return device
    raise UnsupportedModel(
        f"the weights of this {type(model).__name__} are on the meta device, which holds no "
        "numbers, and no hook of accelerate loads them. Load the model with from_pretrained()."
    )


def is_outline(model: PreTrainedModel) -> bool:
    """Return True if a model has no weights: on the meta device, and no hook loads them."""
    return _computing_device(model) is None


def _computing_device(model: PreTrainedModel) -> torch.device | None:
    if model.device.type != "meta":
        return model.device
    for module in model.modules():
        for hook in _hooks(module):
            device = getattr(hook, "execution_device", None)
            if device is not None and torch.device(device).type != "meta":
                return torch.device(device)
    return None


class StoredWeights(NamedTuple):
    """Weights of one module and those inside it, as checkpoints store them. ``offloaded`` maps
    names to offloaded weights; ``prefix`` is this module's path in it.
    """

    module: nn.Module
    offloaded: Mapping[str, Tensor] | None = None
    prefix: str = ""

    @classmethod
    def of(cls, module: nn.Module) -> StoredWeights:
        """Return the weights of a module that no other module's hook loads."""
        return cls(module)._with_hook()

    @property
    def own(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and persistent buffers of the module itself, by name."""
        module = self.module
        persistent = module._buffers.keys() - module._non_persistent_buffers_set
        buffers = {name: module._buffers[name] for name in sorted(persistent)}
        for name, weight in (module._parameters | buffers).items():
            if weight is not None:
                yield name, self._loaded(name, weight)

    def children(self) -> Iterator[tuple[str, StoredWeights]]:
        """Yield the weights of each module inside this one, by its name."""
        for name, child in self.module.named_children():
            inner = StoredWeights(child, self.offloaded, f"{self.prefix}{name}.")
            yield name, inner._with_hook()

    def all(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of the module and those inside it, by path."""
        yield from self.own
        for name, child in self.children():
            for path, weight in child.all():
                yield f"{name}.{path}", weight

    def _with_hook(self) -> StoredWeights:
        for hook in _hooks(self.module):
            if getattr(hook, "offload", False) and hook.weights_map is not None:
                return self._replace(offloaded=hook.weights_map, prefix="")
        return self

    def _loaded(self, name: str, weight: Tensor) -> Tensor:
        if not weight.is_meta or self.offloaded is None:
            return weight
        return self.offloaded[f"{self.prefix}{name}"]


def _hooks(module: nn.Module) -> list[Any]:
    hook = getattr(module, "_hf_hook", None)
    return [] if hook is None else list(getattr(hook, "hooks", [hook]))  # a SequentialHook's
