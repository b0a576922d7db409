"""Hooks around a model's calls: arguments by name, wrapped methods, M-RoPE offsets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from foveate.hf.layer.state import CacheState


def named(forward: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Map positional arguments to their names."""
    if not args:
        return {}
    return dict(zip(inspect.signature(forward).parameters, args, strict=False))


def wrap(undo: ExitStack, module: nn.Module, name: str, around: Callable[..., Any]) -> None:
    """Replace a bound method by ``around(method, ...)``, until ``undo`` is closed."""
    original = getattr(module, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    put(undo, module, name, wrapped)


def put(undo: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    """Set an attribute on the module itself, until ``undo`` is closed. The callback is registered
    first, because an interrupt may fall in between.
    """
    had, old = name in vars(module), vars(module).get(name)

    def back() -> None:
        if had:
            vars(module)[name] = old
        else:
            vars(module).pop(name, None)

    undo.callback(back)
    vars(module)[name] = value


def forget_compiled(undo: ExitStack, model: nn.Module) -> None:
    """Drop the compiled code of a compiled model, now and when ``undo`` is closed. Dynamo has no
    guard on wrappers, so code compiled outside the context would bypass them.
    """
    compiled = [  # one list: models have thousands of modules
        module
        for module in model.modules()
        if module._compiled_call_impl is not None
        or hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
    ]
    if compiled:
        undo.callback(torch._dynamo.reset)
        torch._dynamo.reset()


def note_offsets(modules: dict[str, Any], state: CacheState) -> None:
    """Store the model's M-RoPE offsets (``rope_deltas``) with the cache: the model keeps only the
    latest prompt's.
    """
    offsets = {name: module.rope_deltas for name, module in modules.items()}
    state.note({name: None if t is None else t.clone() for name, t in offsets.items()})


def restore_offsets(modules: dict[str, Any], state: CacheState) -> None:
    """Set the model's M-RoPE offsets to those of the cache that it will continue."""
    for name, module in modules.items():
        if name in state.tokens.extras:
            module.rope_deltas = state.tokens.extras[name]
