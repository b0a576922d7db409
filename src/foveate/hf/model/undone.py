"""What a model notes on itself while it reads, put back: a reading aside is to leave no trace.

Rotary modules grow with the longest text that they have met (dynamic NTK) or switch their
frequencies in place (longrope), Qwen-VL's note the offsets of the latest prompt, others keep a
table. Whatever such a module sets on itself counts, and what is in its buffers. Modules with
weights of their own are left alone: what those note is of their weights (that they are repacked).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_FRAME = frozenset(vars(nn.Module())) - {"_buffers", "_non_persistent_buffers_set"}
"""What every module has and no forward changes: hooks and parts."""

_OF_HOOKS = "_output_capturing_hooks_installed"
"""By this transformers knows that a model's ``output_hidden_states`` has its hooks, which stay."""


class _Bits(NamedTuple):
    """A buffer, and what was in it."""

    buffer: Tensor
    version: int | None  # of the tensor; None where PyTorch does not count
    was: Tensor

    @classmethod
    def of(cls, buffer: Tensor) -> _Bits:
        """Of a buffer as it is."""
        version = None if buffer.is_inference() else buffer._version
        return cls(buffer, version, buffer.detach().clone())

    def put_back(self) -> None:
        """In place, as CUDA graphs read it where it is."""
        if self.version is None or self.buffer._version != self.version:
            with torch.inference_mode(self.buffer.is_inference()), torch.no_grad():
                self.buffer.copy_(self.was)


class _Attribute(NamedTuple):
    """What a module has under a name; of a container also what is in it."""

    value: Any
    content: Any

    @classmethod
    def of(cls, value: Any) -> _Attribute:
        """Of an attribute as it is."""
        return cls(value, value.copy() if isinstance(value, dict | list | set) else None)

    def put_back(self) -> None:
        """The container holds what it held. Its members are compared by what they are, not by
        ``==``: they may be tensors.
        """
        held = self.value
        if isinstance(held, list):
            held[:] = self.content
        elif isinstance(held, set):
            held &= self.content
            held |= self.content
        elif isinstance(held, dict):
            _set(held, self.content)


class ModuleStates:
    """Of a model's modules that have no weights of their own, as they are now."""

    def __init__(self, model: nn.Module):
        modules = [module for module in model.modules() if not _has_weights(module)]
        self._of = [(module, _attributes(module)) for module in modules]
        self._bits = [
            _Bits.of(t) for module in modules for t in module._buffers.values() if t is not None
        ]

    def put_back(self) -> None:
        """The modules are as they were; what they have not changed is not touched."""
        for module, was in self._of:
            others = {name: x for name, x in vars(module).items() if not _is_note(name, x)}
            _set(vars(module), others | {name: one.value for name, one in was.items()})
            for one in was.values():
                one.put_back()
        for bits in self._bits:
            bits.put_back()


def _has_weights(module: nn.Module) -> bool:
    """Parameters, or buffers that checkpoints store: some quantised weights are such."""
    return (
        bool(module._parameters) or not module._buffers.keys() <= module._non_persistent_buffers_set
    )


def _attributes(module: nn.Module) -> dict[str, _Attribute]:
    return {name: _Attribute.of(x) for name, x in vars(module).items() if _is_note(name, x)}


def _is_note(name: str, value: object) -> bool:
    """Functions are none: a block, or accelerate, puts its own around a module's methods."""
    return name not in _FRAME and name != _OF_HOOKS and not callable(value)


def _set(now: dict[str, Any], was: Mapping[str, Any]) -> None:
    """Makes a dictionary what it was."""
    for name in [name for name in now if name not in was]:
        del now[name]
    for name, value in was.items():
        if name not in now or now[name] is not value:
            now[name] = value


@contextmanager
def undone(model: nn.Module) -> Iterator[None]:
    """Whatever the model reads inside, its modules are afterwards as they were."""
    states = ModuleStates(model)
    try:
        try:
            yield
        finally:
            states.put_back()
    finally:
        states.put_back()  # an interrupt may have fallen into the first
