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

_OF_HOOKS = "_output_capturing_hooks_installed"
"""By this transformers knows that a model's ``output_hidden_states`` has its hooks, which stay."""

_FRAME = {*vars(nn.Module()), _OF_HOOKS} - {"_buffers", "_non_persistent_buffers_set"}
"""What every module has and no forward changes: hooks and parts."""


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


class ModuleStates:
    """Of a model's modules that have no weights of their own, as they are now. Models have hundreds
    of them, and an evaluation goes back after every answer, so little is called for each.
    """

    def __init__(self, model: nn.Module):
        self._of: list[tuple[nn.Module, dict[str, tuple[Any, Any]]]] = []
        self._bits: list[_Bits] = []
        for module in model.modules():
            buffers = module._buffers  # those that checkpoints store are some quantised weights
            if module._parameters or not buffers.keys() <= module._non_persistent_buffers_set:
                continue
            self._of.append((module, _notes(module)))
            self._bits += [_Bits.of(t) for t in buffers.values() if t is not None]

    def put_back(self) -> None:
        """The modules are as they were; what they have not changed is not touched."""
        for module, was in self._of:
            now = vars(module)
            for name in _notes(module).keys() - was.keys():
                del now[name]
            for name, (value, content) in was.items():
                if name not in now or now[name] is not value:
                    now[name] = value
                if content or (content is not None and value):  # most of them are empty
                    _refill(value, content)
        for bits in self._bits:
            bits.put_back()


def _notes(module: nn.Module) -> dict[str, tuple[Any, Any]]:
    """What a module has noted under its names; of a container also what is in it. Functions are no
    notes: a block, or accelerate, puts its own around a module's methods.
    """
    return {
        name: (value, value.copy() if isinstance(value, dict | list | set) else None)
        for name, value in vars(module).items()
        if name not in _FRAME and not callable(value)
    }


def _refill(held: Any, content: Any) -> None:
    """Make a container hold what it held. Its members are compared by what they are, not by ``==``:
    they may be tensors.
    """
    if isinstance(held, list):
        held[:] = content
    elif isinstance(held, set):
        held &= content
        held |= content
    elif isinstance(held, dict):
        _set(held, content)


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
