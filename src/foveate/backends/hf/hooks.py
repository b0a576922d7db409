"""Around a model's calls: its arguments by name, its methods wrapped, its notes to itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from foveate.backends.hf.state import CacheState


def named(model: nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Positional arguments of ``forward`` by name."""
    if not args:
        return {}
    return dict(zip(inspect.signature(model.forward).parameters, args, strict=False))


def wrap(model: nn.Module, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Replaces a bound method by ``around(method, ...)``; returns what undoes it."""
    original = getattr(model, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    return put(model, name, wrapped)


def put(model: nn.Module, name: str, value: Any) -> Callable[[], None]:
    """Sets an attribute on the model itself; returns what undoes it."""
    had, old = name in vars(model), vars(model).get(name)

    def undo() -> None:
        if had:
            setattr(model, name, old)
        else:
            delattr(model, name)

    setattr(model, name, value)
    return undo


def forget_compiled(model: nn.Module) -> Callable[[], None]:
    """Where the model was compiled, drops the code: Dynamo does not look whether hooks have come or
    gone, so what it compiled outside of a block would pass by. Returns what drops it again.
    """
    if not any(_is_compiled(module) for module in model.modules()):
        return lambda: None
    torch._dynamo.reset()
    return torch._dynamo.reset


def _is_compiled(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    return module._compiled_call_impl is not None or hasattr(forward, "_torchdynamo_orig_callable")


def note_offsets(modules: dict[str, Any], state: CacheState) -> None:
    """Keeps the offsets with the cache they are of; the model has those of its latest prompt."""
    for name, module in modules.items():
        state.extras[name] = None if module.rope_deltas is None else module.rope_deltas.clone()


def restore_offsets(modules: dict[str, Any], state: CacheState) -> None:
    """Gives the model the offsets of the cache that it is about to continue."""
    for name, module in modules.items():
        if name in state.extras:
            module.rope_deltas = state.extras[name]
