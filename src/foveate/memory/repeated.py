"""Blocks of a vision tower that do what a block before them did: counted once.

A tower in windows has thousands of small operators in every block. What a block takes follows from
its settings and from the shapes that it gets (and from grids, whose numbers are compared).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from foveate.memory.counting import Counting

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_NUMBERED = ("layer_idx", "layer_index")  # which block it is, and nothing that it does


@contextmanager
def once(model: nn.Module, but: nn.Module, counting: Counting) -> Iterator[None]:
    """Inside, blocks of lists outside the module ``but`` run once for each kind and shapes."""
    inside = set(but.modules())
    known: dict[Any, Any] = {}
    changed: list[nn.Module] = []
    for each in model.modules():
        if isinstance(each, nn.ModuleList) and each not in inside and len(each) > 1:
            for block in each:
                block.forward = _Once(block, counting, known)
                changed.append(block)
    try:
        yield
    finally:
        for block in changed:
            block.__dict__.pop("forward", None)


class _Once:
    """A block's forward."""

    def __init__(self, block: nn.Module, counting: Counting, known: dict[Any, Any]):
        self._block, self._counting, self._known = block, counting, known
        self._run = block.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = _key(self._block, (args, kwargs))
        if key is None:
            return self._run(*args, **kwargs)
        if key not in self._known:
            return self._measured(key, args, kwargs)
        rise, made, spec = self._known[key]
        self._counting.risen(rise)
        return tree_unflatten([one and _like(one) for one in made], spec)

    def _measured(self, key: Any, args: Any, kwargs: Any) -> Any:
        counting = self._counting
        before, peak = counting.live, counting.peak
        counting.begin()
        out = self._run(*args, **kwargs)
        leaves, spec = tree_flatten(out)
        if all(isinstance(one, Tensor) and one.is_meta for one in leaves if one is not None):
            shapes = [
                one if one is None else (one.shape, one.stride(), one.dtype) for one in leaves
            ]
            self._known[key] = counting.peak - before, shapes, spec
        counting.peak = max(peak, counting.peak)
        return out


def _like(made: tuple[Any, Any, torch.dtype]) -> Tensor:
    shape, strides, dtype = made
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _key(block: nn.Module, given: Any) -> Any:
    """What the block's work follows from; None where that is not seen."""
    parts: list[Any] = []
    for one in tree_leaves(given):
        if isinstance(one, Tensor):
            numbers = None if one.is_meta else tuple(one.flatten().tolist())
            parts.append((one.shape, one.stride(), one.dtype, numbers))
        elif isinstance(one, _PLAIN):
            parts.append(one)
        else:
            return None
    return type(block), tuple(map(_settings, block.modules())), tuple(parts)


def _settings(module: nn.Module) -> tuple[Any, ...]:
    plain = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN) and name not in _NUMBERED
    }
    shapes = [tuple(one.shape) for one in module.parameters(recurse=False)]
    return (type(module), *plain.items(), *shapes)
