"""What is relied on in transformers beyond its documented interface, in one place.

Whatever here changes with a release is found by name: ``tests/backends/test_internals.py`` says of
each what is relied on, and runs on the oldest and the newest release that is supported.

Beside what this module wraps, these are relied on where they are used:

* ``DynamicCache(config=...)`` makes one layer per layer of the model, ``DynamicLayer`` itself for
  full attention and other classes for the rest (``support.py``); a cache calls ``update``,
  ``get_seq_length``, ``get_mask_sizes``, ``get_max_length``, ``crop``, ``reset``,
  ``reorder_cache``, ``batch_repeat_interleave`` and ``batch_select_indices`` of its layers
  (``cache_layer.py``, ``fixed.py``).
* Attention functions come from an ``AttentionInterface``, by ``get_interface`` or as an item, and
  are called with the very keys that ``update`` returned, so that an attribute on them leads back to
  the layer (``interface.py``).
* ``generate`` reads a prompt through the model's ``forward``, with the tokens that the cache has
  not seen (``calls.py``).
* ``generate`` merges its arguments with a ``generation_config`` that it is given and with the
  model's own in ``_prepare_generation_config`` (``generation_settings`` below).
* GGUF files are read with the ``tqdm`` of ``modeling_gguf_pytorch_utils`` (``demo/smollm2.py``).
* Configurations name their placeholder tokens ``image_token_id`` and the like (``modality.py``)
  and their cross-attention layers ``cross_attention_layers`` (``support.py``).
"""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from torch import nn
from transformers import GenerationConfig, GenerationMixin, cache_utils
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import AttentionInterface
from transformers.utils.generic import TransformersKwargs

from foveate.errors import InvalidInput, InvalidParameter

__all__ = [
    "CACHE",
    "CACHE_NAMES",
    "POSITIONS_RULE",
    "STATES",
    "AttentionInterface",
    "Cache",
    "CacheLayerMixin",
    "DynamicLayer",
    "HybridLayer",
    "accept_both_names",
    "cache_argument",
    "check_inputs",
    "generation_settings",
    "given_cache",
    "last_logits",
    "name_cache",
    "rope_offsets",
    "sdpa_attention_forward",
    "take_cache",
]

CACHE_NAMES = ("cache", "past_key_values")
"""What the cache is called: since 5.24 the first, before it the second."""

POSITIONS_RULE = "_prepare_position_ids_for_generation"
"""The method by which ``generate`` places a conversation's tokens, given its ids and the other
inputs; with M-RoPE it makes [axes, b, t].
"""

LOGITS = "logits_to_keep"
"""The argument that says of how many of the last tokens logits are made."""


HybridLayer: Any = getattr(cache_utils, "LinearAttentionAndFullAttentionLayer", None)
"""A layer that has a recurrent or convolution state beside its keys and values; None on releases
without such layers."""


STATES = hasattr(cache_utils, "LinearAttentionLayer")
"""Whether a ``DynamicCache`` holds the states of linear-attention and convolution layers; on older
releases models have caches of their own for these."""

_DEPRECATED = "`past_key_values`/`cache_params` are deprecated"  # how that message begins


def _cache_name(function: Callable[..., Any], default: str) -> str:
    """The name under which a function takes the cache."""
    parameters = inspect.signature(function).parameters
    for name in CACHE_NAMES:  # next() and a default is more than Dynamo of PyTorch 2.8 traces
        if name in parameters:
            return name
    return default


CACHE = _cache_name(GenerationMixin.prepare_inputs_for_generation, CACHE_NAMES[1])
"""The argument in which this release's ``generate`` hands the cache to a model."""


def cache_argument(model: nn.Module) -> str:
    """The argument in which this model's ``forward`` takes the cache: code that comes with a
    checkpoint may be older than the release.
    """
    return _cache_name(model.forward, CACHE)


def last_logits(model: nn.Module, given: Mapping[str, Any]) -> dict[str, int]:
    """What has a model make logits of a prompt's last token alone, where it can: those of all
    tokens take more memory than the cache does. Nothing where the caller says how many.
    """
    able = LOGITS in inspect.signature(model.forward).parameters
    return {LOGITS: 1} if able and LOGITS not in given else {}


GIVEN = ("input_ids", "inputs_embeds", "hidden_states")
"""What a decoder reads, by the names that it may have."""


def given_tokens(arguments: Mapping[str, Any]) -> Any:
    """What a decoder reads, among its arguments: [b, t, ...]; None if there is nothing."""
    for name in GIVEN:
        if arguments.get(name) is not None:
            return arguments[name]
    return None


def take_cache(arguments: dict[str, Any]) -> Any:
    """Takes the cache out of keyword arguments, whatever its name; None if there is none.

    Raises:
        InvalidInput: two different caches.
    """
    given = [arguments.pop(name) for name in CACHE_NAMES if name in arguments]
    caches = [one for one in given if one is not None]
    if len(caches) > 1 and caches[0] is not caches[1]:
        raise InvalidInput(
            "two different caches were given, as cache= and as past_key_values=. Both are names of "
            "the same argument: give one."
        )
    return caches[0] if caches else None


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """The cache among keyword arguments, whatever its name; None if there is none."""
    given = [arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None]
    return given[-1] if given else None


def name_cache(output: Any) -> None:
    """Lets an output's cache be read as ``output.cache`` on releases that know the older name
    alone; newer ones know both.
    """
    if CACHE == "past_key_values" and getattr(output, "past_key_values", None) is not None:
        output.cache = output.past_key_values


def accept_both_names(undo: ExitStack) -> None:
    """Silences what releases from 5.24 on log of the older name, until it is undone. Blocks may
    overlap, so each has a filter of its own.
    """
    log = logging.getLogger("transformers.utils.generic")

    def other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_DEPRECATED)

    undo.callback(log.removeFilter, other)
    log.addFilter(other)


def rope_offsets(model: nn.Module) -> dict[str, Any]:
    """The modules that note the M-RoPE offsets of the latest prompt on themselves (Qwen-VL), as
    ``rope_deltas``.
    """
    return {name: m for name, m in model.named_modules() if "rope_deltas" in vars(m)}


def generation_settings(model: Any, given: Mapping[str, Any]) -> GenerationConfig:
    """Merge settings as ``generate`` does: its arguments over a ``generation_config`` among them,
    over the model's own, over transformers' defaults.

    Raises:
        InvalidInput: a ``generation_config`` that is none, or a value that transformers refuses.
    """
    config = given.get("generation_config")
    if not isinstance(config, GenerationConfig | None):
        raise InvalidInput(
            f"generation_config={config!r:.80} is a {type(config).__name__}: give a "
            "transformers.GenerationConfig, or its fields as arguments."
        )
    fields = vars(GenerationConfig())  # type: ignore[no-untyped-call]
    arguments = {name: value for name, value in given.items() if name in fields}
    try:
        settings: GenerationConfig = model._prepare_generation_config(config, **arguments)[0]
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"generate() refuses its settings: {error}") from error
    return settings


_OTHERS = {"return_dict", "token_type_ids", "mm_token_type_ids"}
"""An argument of every model, and outputs of processors that some models have no use for."""


def check_inputs(model: nn.Module, names: Iterable[str]) -> None:
    """Refuse arguments that no module of a model reads: its forward would ignore them silently.

    Raises:
        InvalidParameter: there is one; the message names the closest argument.
    """
    known = {*TransformersKwargs.__annotations__, *_OTHERS}
    for kind in {type(module) for module in model.modules()}:
        known |= {*inspect.signature(kind.forward).parameters}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            way_out = f"Did you mean {close[0]}=?" if close else "Leave it out."
            raise InvalidParameter(
                f"{name}= is read by no part of {type(model).__name__}, which would ignore it. "
                f"{way_out}"
            )
