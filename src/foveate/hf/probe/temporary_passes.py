"""Passes after a prompt that leave its cache as it was: in a second reading, or an aside."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import DynamicCache

from foveate.hf.layer.state import CacheState, RereadPass
from foveate.hf.layer.support import foveate_layers


@contextmanager
def restored_after(cache: DynamicCache, state: CacheState, reread: RereadPass) -> Iterator[None]:
    """Whatever is read inside, the cache holds what it held, also after an exception."""
    layers, held = foveate_layers(cache), _layers(cache)
    own, pads, end = [layer.pairs for layer in layers], state.tokens.pad, layers[0].seen
    others = [(place, layer) for place, layer in enumerate(held) if layer not in layers]
    try:
        state.reread = reread
        for layer in layers:
            layer.use_copy()
        for place, other in others:
            held[place] = copy.deepcopy(other)
        yield
    finally:
        state.reread = None
        for layer, pairs in zip(layers, own, strict=True):
            layer.give_back(pairs, end)
        for place, other in others:
            held[place] = other
        state.update_tokens(pad=pads)
        state.view = None


def _layers(cache: DynamicCache) -> list[Any]:
    layers: list[Any] = cache.layers
    return layers
