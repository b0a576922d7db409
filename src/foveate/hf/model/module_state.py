"""State that a model's modules change while they read, and its restoring after a probe pass.

Rotary modules grow with the longest text that they have read (dynamic NTK) or switch their
frequencies in place (longrope), Qwen-VL's store the offsets of the latest prompt, others cache a
table. Restored are the attributes that such a module sets on itself, and the content of its
buffers. Modules with weights of their own are left alone: their attributes concern the weights
(such as repacking).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_OF_HOOKS = "_output_capturing_hooks_installed"
"""Attribute by which transformers knows that its hooks for ``output_hidden_states`` are installed;
they stay.
"""

_FRAME = {*vars(nn.Module()), _OF_HOOKS} - {"_buffers", "_non_persistent_buffers_set"}
"""Attributes that every module has and no forward changes: hooks and submodules."""


class _Bits(NamedTuple):
    """A buffer, and a copy of its content."""

    buffer: Tensor
    version: int | None  # PyTorch's count of in-place changes; None for inference tensors
    was: Tensor

    @classmethod
    def of(cls, buffer: Tensor) -> _Bits:
        """Copy a buffer."""
        version = None if buffer.is_inference() else buffer._version
        return cls(buffer, version, buffer.detach().clone())

    def put_back(self) -> None:
        """Restore the content in place, because CUDA graphs read the buffer's address."""
        if self.version is None or self.buffer._version != self.version:
            with torch.inference_mode(self.buffer.is_inference()), torch.no_grad():
                self.buffer.copy_(self.was)


class ModuleStates:
    """State of a model's modules without weights of their own. Models have hundreds of these
    modules, and an evaluation restores them after every answer, so the work for each is small.
    """

    def __init__(self, model: nn.Module):
        self._of: list[tuple[nn.Module, dict[str, tuple[Any, Any]]]] = []
        self._bits: list[_Bits] = []
        for module in model.modules():
            buffers = module._buffers  # persistent ones may be quantised weights
            if module._parameters or not buffers.keys() <= module._non_persistent_buffers_set:
                continue
            self._of.append((module, _notes(module)))
            self._bits += [_Bits.of(t) for t in buffers.values() if t is not None]

    def put_back(self) -> None:
        """Restore the modules; unchanged state is not touched."""
        for module, was in self._of:
            now = vars(module)
            for name in _notes(module).keys() - was.keys():
                del now[name]
            for name, (value, content) in was.items():
                if name not in now or now[name] is not value:
                    now[name] = value
                if content or (content is not None and value):  # most are empty: skip the call
                    _refill(value, content)
        for bits in self._bits:
            bits.put_back()


def _notes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """Return a module's attributes; of containers also a copy. Functions are left out:
    ``compress()`` and accelerate replace a module's methods.
    """
    return {
        name: (value, value.copy() if isinstance(value, dict | list | set) else None)
        for name, value in vars(module).items()
        if name not in _FRAME and not callable(value)
    }


def _refill(container: Any, content: Any) -> None:
    """Restore a container's content in place. Items are compared by identity, not by ``==``: they
    may be tensors.
    """
    if isinstance(container, list):
        container[:] = content
    elif isinstance(container, set):
        container &= content
        container |= content
    elif isinstance(container, dict):
        _set(container, content)


def _set(now: dict[str, Any], was: Mapping[str, Any]) -> None:
    """Restore a dictionary in place."""
    for name in [name for name in now if name not in was]:
        del now[name]
    for name, value in was.items():
        if name not in now or now[name] is not value:
            now[name] = value


@contextmanager
def restored_modules(model: nn.Module) -> Iterator[None]:
    """Restore the model's modules on exit, whatever it read inside."""
    states = ModuleStates(model)
    try:
        try:
            yield
        finally:
            states.put_back()
    finally:
        states.put_back()  # an interrupt may have cut the first short
