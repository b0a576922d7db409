"""The decoder of a model: the module that reads prompts into a cache.

A vision-language model is a decoder in wrappers: one that inserts image features into the text, one
that computes logits, sometimes a complete language model that generates on its own (BLIP-2,
Kosmos-2, Qwen-Omni). Whichever of them is called, the prompt passes through the decoder.
"""

from __future__ import annotations

import inspect
from collections import Counter
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from torch import nn
from transformers import PreTrainedConfig

from foveate.hf.model.internals import CACHE_NAMES


class DecoderPath(NamedTuple):
    """A model's decoder, and the modules around it, the model first."""

    decoder: nn.Module
    around: tuple[nn.Module, ...]

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        """All of these modules, the decoder last."""
        return (*self.around, self.decoder)


class _Found(NamedTuple):
    """Names of a model's parts; a module stored here would keep the model alive. Valid for models
    with this many modules and this configuration.
    """

    modules: int
    config: ref[PreTrainedConfig]
    decoder: str
    stacks: tuple[str, ...]


_found: WeakKeyDictionary[nn.Module, _Found] = WeakKeyDictionary()


def find(model: nn.Module, config: PreTrainedConfig) -> DecoderPath:
    """Find the innermost module that takes the cache for all attention layers of that
    configuration; the model itself if its layers are unknown. Cached: a model is searched once.
    """
    name = _search(model, config).decoder
    parts = name.split(".") if name else []
    path = [".".join(parts[:depth]) for depth in range(len(parts))]
    return DecoderPath(model.get_submodule(name), tuple(map(model.get_submodule, path)))


def layer_stacks(model: nn.Module, config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the paths of the lists of layers with the configuration's attention modules: usually
    one. Modules without ``config`` count if there are as many as it has layers. Cached: a model is
    searched once.
    """
    return _search(model, config).stacks


def _search(model: nn.Module, config: PreTrainedConfig) -> _Found:
    known, modules = _found.get(model), len(list(model.modules()))
    if known is None or known.modules != modules or known.config() is not config:
        stacks = _search_stacks(model, config)
        takers = [name for name, module in model.named_modules() if _takes_cache(module)]
        outer = [
            name for name in takers if stacks and all(_inside(stack, name) for stack in stacks)
        ]
        decoder = max(outer, key=len, default="")
        known = _found[model] = _Found(modules, ref(config), decoder, tuple(stacks))
    return known


def _search_stacks(model: nn.Module, config: PreTrainedConfig) -> list[str]:
    own, other = Counter[str](), Counter[str]()
    for name, module in model.named_modules():
        if isinstance(getattr(module, "layer_idx", None), int) and _takes_cache(module):
            counts = own if getattr(module, "config", None) is config else other
            counts[_before_number(name)] += 1
    layers = getattr(config, "num_hidden_layers", 0)
    complete = [
        [name for name, count in sorted(counts.items()) if count >= layers]
        for counts in (own, other)
    ]
    return complete[0] or sorted(own) or (complete[1] if layers else [])


def _before_number(name: str) -> str:
    """Return the path up to the first list of layers."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[:first])


def _inside(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith(f"{outer}.")


def _takes_cache(module: nn.Module) -> bool:
    return _names_cache(type(module).forward)


@cache
def _names_cache(forward: Any) -> bool:
    """Return True if a function has a cache argument. Cached: modules of one type share it, and
    signatures are slow.
    """
    parameters = inspect.signature(forward).parameters
    return any(name in parameters for name in CACHE_NAMES)
