"""Around a model's calls: its arguments by name, its methods wrapped, its notes to itself."""

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
    """Positional arguments by name."""
    if not args:
        return {}
    return dict(zip(inspect.signature(forward).parameters, args, strict=False))


def wrap(undo: ExitStack, module: nn.Module, name: str, around: Callable[..., Any]) -> None:
    """Replaces a bound method by ``around(method, ...)``, until it is undone."""
    original = getattr(module, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    put(undo, module, name, wrapped)


def put(undo: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    """Sets an attribute on the module itself, until it is undone. The way back is there first, for
    an interrupt may fall in between.
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
    """Where the model was compiled, drops the code, and again when it is undone: Dynamo does not
    look whether wrappers have come or gone, so what it compiled outside would pass by.
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
    """Keeps the offsets with the cache they are of; the model has those of its latest prompt."""
    offsets = {name: module.rope_deltas for name, module in modules.items()}
    state.note({name: None if t is None else t.clone() for name, t in offsets.items()})


def restore_offsets(modules: dict[str, Any], state: CacheState) -> None:
    """Gives the model the offsets of the cache that it is about to continue."""
    for name, module in modules.items():
        if name in state.tokens.extras:
            module.rope_deltas = state.tokens.extras[name]
