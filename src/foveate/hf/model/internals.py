"""Undocumented behaviour of transformers that Foveate depends on.

``tests/backends/test_internals.py`` checks each item, on the oldest and the newest supported
release, so that a change in a release is found by name.

Beside the names in this module, other modules depend on:

* ``DynamicCache(config=...)`` creates one layer per layer of the model, ``DynamicLayer`` itself for
  full attention and other classes for the rest (``support.py``); a cache calls ``update``,
  ``get_seq_length``, ``get_mask_sizes``, ``get_max_length``, ``crop``, ``reset``,
  ``reorder_cache``, ``batch_repeat_interleave`` and ``batch_select_indices`` of its layers
  (``cache_layer.py``, ``fixed.py``).
* Attention functions come from an ``AttentionInterface``, by ``get_interface`` or as an item, and
  are called with the very keys that ``update`` returned, so that an attribute on them leads back to
  the layer (``interface.py``).
* ``expand_kv`` of modules with latent attention (MLA) multiplies latents by the weight of
  ``kv_b_proj``, whose rows are, head by head, ``qk_nope_head_dim`` of keys and ``v_head_dim`` of
  values (``absorbed.py``).
* Attention modules with an ``indexer`` call ``update``, ``expand_kv`` and the indexer in this
  order; the indexer adds ``attention_mask`` to its scores before its top-k and calls
  ``update_indexer``; the top-k becomes a mask with as many columns as the
  expanded keys (``indexed_layer.py``).
* ``generate`` reads a prompt through the model's ``forward``, with the tokens that the cache has
  not seen (``calls.py``).
* ``generate`` merges its arguments with a ``generation_config`` among them and with the model's
  own in ``_prepare_generation_config`` (``generation_settings`` below).
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
    "IndexedLayer",
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
"""Names of the cache argument: the first since transformers 5.24, the second before."""

POSITIONS_RULE = "_prepare_position_ids_for_generation"
"""Method by which ``generate`` computes a conversation's positions from its ids and the other
inputs; with M-RoPE, [axes, b, t].
"""

LOGITS = "logits_to_keep"
"""Argument with the number of last tokens whose logits are computed."""


HybridLayer: Any = getattr(cache_utils, "LinearAttentionAndFullAttentionLayer", None)
"""Cache layer with a recurrent or convolution state beside its keys and values; None on releases
without such layers.
"""

IndexedLayer: Any = getattr(cache_utils, "DynamicIndexedLayer", None)
"""Cache layer with index keys beside its keys and values (sparse attention); None on releases
without such layers.
"""

STATES = hasattr(cache_utils, "LinearAttentionLayer")
"""True if ``DynamicCache`` stores the states of linear-attention and convolution layers; on older
releases models have caches of their own for these.
"""

_DEPRECATED = "`past_key_values`/`cache_params` are deprecated"  # beginning of the warning


def _cache_name(function: Callable[..., Any], default: str) -> str:
    """Return the name of a function's cache argument."""
    parameters = inspect.signature(function).parameters
    for name in CACHE_NAMES:  # PyTorch 2.8's Dynamo cannot trace next() with a default
        if name in parameters:
            return name
    return default


CACHE = _cache_name(GenerationMixin.prepare_inputs_for_generation, CACHE_NAMES[1])
"""Argument in which this release's ``generate`` passes the cache to a model."""


def cache_argument(model: nn.Module) -> str:
    """Return the name of the cache argument of this model's ``forward``: code from a checkpoint may
    be older than the release.
    """
    return _cache_name(model.forward, CACHE)


def last_logits(model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the argument that limits the logits to the prompt's last token, if the model has it:
    those of all tokens take more memory than the cache does. Empty if the caller sets it.
    """
    able = LOGITS in inspect.signature(model.forward).parameters
    return {LOGITS: 1} if able and LOGITS not in inputs else {}


GIVEN = ("input_ids", "inputs_embeds", "hidden_states")
"""Names of the argument with a decoder's tokens."""


def given_tokens(arguments: Mapping[str, Any]) -> Any:
    """Return the decoder's tokens from its arguments: [b, t, ...]; None without any."""
    for name in GIVEN:
        if arguments.get(name) is not None:
            return arguments[name]
    return None


def take_cache(arguments: dict[str, Any]) -> Any:
    """Remove the cache from keyword arguments, under either name; None if there is none.

    Raises:
        InvalidInput: two different caches.
    """
    values = [arguments.pop(name) for name in CACHE_NAMES if name in arguments]
    caches = [value for value in values if value is not None]
    if len(caches) > 1 and caches[0] is not caches[1]:
        raise InvalidInput(
            "two different caches were given, as cache= and as past_key_values=. Both are names of "
            "the same argument: give one."
        )
    return caches[0] if caches else None


def given_cache(arguments: Mapping[str, Any]) -> Any:
    """Return the cache among keyword arguments, under either name; None if there is none."""
    caches = [arguments[name] for name in CACHE_NAMES if arguments.get(name) is not None]
    return caches[-1] if caches else None


def name_cache(output: Any) -> None:
    """Set ``output.cache`` on releases that know only the older name; newer ones have both."""
    if CACHE == "past_key_values" and getattr(output, "past_key_values", None) is not None:
        output.cache = output.past_key_values


def accept_both_names(undo: ExitStack) -> None:
    """Silence the deprecation warning of the older name (transformers 5.24 and later), until
    ``undo`` is closed. Contexts may overlap, so each adds its own filter.
    """
    log = logging.getLogger("transformers.utils.generic")

    def other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_DEPRECATED)

    undo.callback(log.removeFilter, other)
    log.addFilter(other)


def rope_offsets(model: nn.Module) -> dict[str, Any]:
    """Return the modules that store the M-RoPE offsets of the latest prompt (Qwen-VL), as
    ``rope_deltas``.
    """
    return {name: m for name, m in model.named_modules() if "rope_deltas" in vars(m)}


def generation_settings(model: Any, kwargs: Mapping[str, Any]) -> GenerationConfig:
    """Merge settings as ``generate`` does: its arguments over a ``generation_config`` among them,
    over the model's own, over transformers' defaults.

    Raises:
        InvalidInput: ``generation_config`` is not one, or transformers rejects a value.
    """
    config = kwargs.get("generation_config")
    if not isinstance(config, GenerationConfig | None):
        raise InvalidInput(
            f"generation_config={config!r:.80} is a {type(config).__name__}: give a "
            "transformers.GenerationConfig, or its fields as arguments."
        )
    fields = vars(GenerationConfig())  # type: ignore[no-untyped-call]
    arguments = {name: value for name, value in kwargs.items() if name in fields}
    try:
        settings: GenerationConfig = model._prepare_generation_config(config, **arguments)[0]
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"generate() refuses its settings: {error}") from error
    return settings


_OTHERS = {"return_dict", "token_type_ids", "mm_token_type_ids"}
"""An argument of every model, and outputs of processors that some models do not use."""


def check_inputs(model: nn.Module, names: Iterable[str]) -> None:
    """Raise for arguments that no module of a model reads: its forward would ignore them silently.

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
