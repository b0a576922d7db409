"""Checks of the arguments of calls inside a context, which raise for what cannot be compressed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
import transformers
from torch import Tensor, nn

from foveate.errors import InvalidInput, UnsupportedCache, UnsupportedModel
from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.model.internals import CACHE_NAMES, generation_settings


def check_tokens(tokens: Tensor | None, cache: Any = None) -> None:
    """Raise InvalidInput if a pass has no tokens."""
    if tokens is not None and tokens.shape[1]:
        return
    seen = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0
    if not seen:
        raise InvalidInput("the prompt is empty: pass at least one token.")
    # generate() cuts off as many tokens as the cache has read, and none remains
    raise InvalidInput(
        f"no token is left to read: this cache has read {seen} tokens, and generate() takes them "
        "and the new ones together. Pass input_ids=torch.cat([context_ids, question_ids], dim=1)."
    )


def trains(decoder: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Return True for a training step that reads its whole input and leaves no cache: nothing is
    compressed, and loss and gradients are the stock ones.
    """
    alone = all(kwargs.get(name) is None for name in CACHE_NAMES)
    if not (alone and decoder.training and torch.is_grad_enabled()):
        return False
    return kwargs.get("use_cache") is False or _checkpoints(decoder)


def _checkpoints(decoder: nn.Module) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in decoder.modules())


def check_cached(decoder: nn.Module, kwargs: Mapping[str, Any]) -> None:
    """Raise UnsupportedCache if a pass would leave no cache that can be compressed."""
    name = str(getattr(getattr(decoder, "config", None), "_attn_implementation", ""))
    if name.startswith("paged|"):
        refuse_continuous(None)
    if kwargs.get("use_cache") is False:
        raise UnsupportedCache(
            "use_cache=False, as trainers pass it when they evaluate, leaves no cache to compress. "
            "Leave it out, or call the model outside the block."
        )
    if decoder.training and _checkpoints(decoder):
        raise UnsupportedCache(
            "gradient checkpointing drops the cache of a model in training mode, so nothing is "
            "left to compress. Call model.eval() first."
        )


CONTINUOUS = ("generate_batch", "init_continuous_batching", "continuous_batching_context_manager")
"""Methods that start transformers' continuous batching."""


def refuse_continuous(original: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise UnsupportedCache, in place of a method that starts transformers' continuous
    batching.
    """
    name = getattr(original, "__name__", "continuous batching")
    raise UnsupportedCache(
        f"{name} (transformers' continuous batching) keeps all requests in one paged cache, which "
        "is not compressed. Call generate() with a padded batch, or serve the model with vLLM and "
        "Foveate's plug-in, which compresses pages."
    )


def check_settings(model: Any, kwargs: Mapping[str, Any]) -> None:
    """Check the cache settings of ``generate``, in its arguments and in its configuration.

    Raises:
        UnsupportedCache: there would be no cache, or a paged one.
    """
    own = kwargs.get("generation_config")
    settings = own or getattr(model, "generation_config", None)
    if hasattr(model, "_prepare_generation_config"):  # else it has its own generate()
        settings = generation_settings(model, kwargs)
    paged = kwargs.get("cache_implementation", getattr(settings, "cache_implementation", None))
    if paged == "paged":
        raise UnsupportedCache(
            "cache_implementation='paged' has generate() batch its requests continuously, in one "
            "paged cache, which is not compressed. Leave it out, or serve the model with vLLM and "
            "Foveate's plug-in, which compresses pages."
        )
    use_cache = kwargs.get("use_cache")
    if use_cache is False:
        raise UnsupportedCache(
            "use_cache=False was given to generate(), and leaves no cache to compress. Leave it "
            "out, or call it outside the block."
        )
    embedded = kwargs.get("inputs_embeds") is not None  # then generate() takes a cache anyway
    if use_cache is None and not embedded and getattr(settings, "use_cache", None) is False:
        whose = "this" if getattr(own, "use_cache", None) is False else "the model's"
        raise UnsupportedCache(
            f"{whose} generation_config has use_cache=False, as trainers set it and checkpoints "
            "keep it, which leaves no cache to compress. Call generate(..., use_cache=True), or "
            "set model.generation_config.use_cache = True."
        )


def check_helpers(kwargs: Mapping[str, Any], modules: Sequence[nn.Module]) -> None:
    """Raise if ``generate`` would draft tokens with this very model, whose cache is compressed."""
    if kwargs.get("assistant_early_exit"):
        raise UnsupportedModel(
            "assistant_early_exit drafts with the same model and cache, which is being "
            "compressed. Use assistant_model or prompt_lookup_num_tokens."
        )
    if kwargs.get("assistant_model") in modules:
        raise InvalidInput(
            "assistant_model is the model itself, whose cache is being compressed. Give "
            "another model, or prompt_lookup_num_tokens."
        )


def check_rows(stored: int, rows: int) -> None:
    """Raise InvalidInput for a pass whose number of rows differs from the cache's."""
    if stored != rows:
        raise InvalidInput(
            f"the cache has {stored} rows, after beams, several sequences or a batch, and the next "
            f"pass has {rows}. Select the row to continue, "
            "cache.batch_select_indices(torch.tensor([0])), or pass as many rows."
        )


def refuse_old_pixels(error: ValueError, cache: Any) -> None:
    """Raise InvalidInput in place of the model's own error, if the images of a later turn do not
    match its new tokens. Any other error is left to the caller.
    """
    layers = [layer for layer in getattr(cache, "layers", ()) if isinstance(layer, FoveateLayer)]
    if "tokens do not match" in str(error) and layers and layers[0].seen:
        raise InvalidInput(
            f"{' '.join(str(error).split())}. Give a later turn the pixels and sizes of its new "
            "images alone: earlier ones are in the cache."
        ) from error


def check_all_took_part(model: nn.Module, layers: list[FoveateLayer]) -> None:
    """Raise UnsupportedModel if a layer's keys did not pass through Foveate's attention."""
    empty = [layer.model_index for layer in layers if not layer.is_initialized]
    unread = [layer.model_index for layer in layers if layer.is_initialized and not layer.linked]
    for seen, which in (
        ("wrote nothing into its cache", empty),
        (
            "bypassed transformers' attention interface, or attended to other keys than the cache "
            "returned",
            unread,
        ),
    ):
        if which:
            raise UnsupportedModel(
                f"{type(model).__name__} (transformers {transformers.__version__}) was not "
                f"compressed: in layers {which} it {seen}. The model's answers may be wrong."
            )
