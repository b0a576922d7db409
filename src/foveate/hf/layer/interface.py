"""Interception of transformers' attention functions while a ``compress()`` context is open.

A model keeps the name of its attention implementation in a context: some models decide by it
whether they apply a sparse mask, and transformers builds masks by it. So nothing is registered.
Instead transformers' ``AttentionInterface`` returns its functions wrapped: if a Foveate cache layer
returned the keys, the wrapped function calls that layer's attention, otherwise the original
function. Leaving the last context restores the interface.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from foveate.errors import UnsupportedModel
from foveate.hf.attention.by_products import ModelAttention, Output
from foveate.hf.layer.cache_layer import LINK, FoveateLayer
from foveate.hf.layer.call_turn import Call, CallTurn
from foveate.hf.layer.fixed import FixedLayer
from foveate.hf.layer.phases import attend, attend_shared_kv
from foveate.hf.layer.state import Link
from foveate.hf.model.internals import AttentionInterface, sdpa_attention_forward

Function = Callable[..., Output]

TAKES_MASKS = ("sdpa", "eager")
"""Implementations that take a mask over queries and columns; the others take a kind of their own,
or a padding mask.
"""

_NOT_OURS = ("softcap", "s_aux")
"""Attention arguments of some models that only their own function computes; Foveate's operators
never replace it.
"""


@dataclass
class Reader:
    """A decoder in a context, and the call in which it reads. ``traced`` is True while
    torch.compile traces its ``forward``, which takes no turn.
    """

    decoder: nn.Module
    link: Link
    call: Call | None = None
    traced: bool = False

    @property
    def reads(self) -> bool:
        """True inside the decoder's ``forward``."""
        if torch.compiler.is_compiling():
            return self.traced or self.call is not None
        return self.traced or (self.call is not None and self.call.runs())


readers: dict[int, Reader] = {}
"""Readers by the identity of their decoder's configuration."""

lookers: dict[int, Callable[[Tensor, Tensor, Any, Mapping[str, Any]], None]] = {}
"""Observers of attention that no Foveate cache takes part in, by the identity of the attention
module: called with queries, keys, mask and other arguments.
"""


@cache
def knows(name: str | None) -> bool:
    """Return True if ``name`` is an attention implementation of transformers, or a kernel that
    transformers loads in the place of one. Cached: every layer of every step calls it.
    """
    name = (name or "").removeprefix("paged|")
    return name in (*TAKES_MASKS, "flex_attention") or "flash" in name


def check_known(name: str | None, whose: str) -> None:
    """Raise UnsupportedModel for an attention implementation that Foveate does not know."""
    if not knows(name):
        raise UnsupportedModel(
            f"{whose} attention implementation is {name!r}, which is none of transformers' own. "
            "Load it with attn_implementation='sdpa', 'eager', 'flex_attention' or a flash "
            "attention."
        )


def _through_the_cache(
    function: Function,
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **kwargs: Any,
) -> Output:
    """Call ``function``, or the cache layer's attention if a Foveate cache returned the keys."""
    layer: FoveateLayer | FixedLayer | None = getattr(key, LINK, None)
    if layer is None:
        _check_caller(module)
        if (look := lookers.get(id(module))) is not None:
            look(query, key, attention_mask, kwargs)
        return function(module, query, key, value, attention_mask, **kwargs)
    if not knows(name):  # it may have been set inside the context
        check_known(name, f"{type(module).__name__}'s")
    _check_passed(module, name, kwargs)
    scale = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    attention = _model_attention(function, name, module, kwargs)
    if isinstance(layer, FixedLayer):
        return layer.attend(attention, query, attention_mask, scale)
    index: Any = getattr(module, "layer_idx", None)
    if layer.state.shares_kv and index != layer.model_index:
        expand = None if layer.expansion is None else layer.state.link.expansions.get(index)
        return attend_shared_kv(layer, attention, query, key, value, attention_mask, scale, expand)
    return attend(layer, attention, query, attention_mask, scale)


def _check_passed(module: nn.Module, name: str, kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments of a model's attention that name slots of the cache."""
    if kwargs.get("position_bias") is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} passes 'position_bias' to its attention, which depends on a "
            "key's index in the cache, not on its position. This model cannot be compressed."
        )
    if kwargs.get("indices") is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} passes the indices that its indexer chose to {name!r}, which "
            "reads them in the cache. Load the model with attn_implementation='sdpa' or 'eager'."
        )


def pass_latents(expand: Callable[..., Any], latents: Tensor, rotary: Tensor) -> Any:
    """Call a model's expansion of latents, or leave it to the cache layer that returned them."""
    return (latents, rotary) if hasattr(latents, LINK) else expand(latents, rotary)


def _model_attention(
    function: Function, name: str, module: nn.Module, kwargs: dict[str, Any]
) -> ModelAttention:
    extra = None
    for argument in _NOT_OURS:
        extra = argument if kwargs.get(argument) is not None else extra
    plain = partial(function, module, **kwargs)
    masked: Function = partial(sdpa_attention_forward, module, **kwargs)
    if extra:
        masked = partial(_refuse_masks, f"{type(module).__name__} passes {extra!r} to its {name}")
    takes_masks = name in TAKES_MASKS
    return ModelAttention(
        plain=plain,
        masked=plain if takes_masks else masked,
        takes_masks=takes_masks,
        additive=name == "eager",
        replaceable=not extra,
        is_sdpa=function is sdpa_attention_forward and not extra and not kwargs.get("dropout"),
        causal_without_mask=name not in ("eager", "flex_attention"),
    )


def _refuse_masks(why: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Output:
    raise UnsupportedModel(
        f"{why}, which takes no mask over the kept pairs. Load the model with "
        "attn_implementation='eager'."
    )


def in_backward() -> bool:
    """Return True in a backward pass: gradient checkpointing calls layers again there."""
    return torch._C._current_graph_task_id() != -1


def _check_caller(module: nn.Module) -> None:
    """Raise UnsupportedModel if the decoder's layer is called outside the decoder's ``forward``.
    The prompt would silently not be compressed. Layers that are not compressed call this inside
    ``forward``.
    """
    reader = readers.get(id(getattr(module, "config", None)))
    if reader is None or reader.reads or in_backward():
        return
    if all(module is not part for part in reader.decoder.modules()):
        return  # of another model that shares the configuration
    decoder_name = type(reader.decoder).__name__
    raise UnsupportedModel(
        f"{type(module).__name__} was called inside a compress() block, but not through a call of "
        f"its {decoder_name}, so the prompt would not be compressed. Call model(...) or "
        "model.generate(...) instead of a forward() or a layer by itself."
    )


# Patched lookups

_turn = CallTurn()
_open: list[object] = []  # open contexts


def intercept(block: object) -> None:
    """Patch the interface to return wrapped functions, until ``release(block)``."""
    call = _turn.take(sys._getframe())
    try:
        _open.append(block)
        AttentionInterface.get_interface = _get_interface  # type: ignore[method-assign]
        AttentionInterface.__getitem__ = _getitem  # type: ignore[method-assign]
    finally:
        call.end()


def release(block: object) -> None:
    """Remove the block; restore the interface after the last one. A no-op for a block that was
    never open.
    """
    call = _turn.take(sys._getframe())
    try:
        _open[:] = [other for other in _open if other is not block]
        if not _open:
            AttentionInterface.get_interface = _STOCK  # type: ignore[method-assign]
            if "__getitem__" in vars(AttentionInterface):
                del AttentionInterface.__getitem__
    finally:
        call.end()


_STOCK = AttentionInterface.get_interface


def _get_interface(self: Any, attn_implementation: Any, default: Function) -> Function:
    name = attn_implementation
    # transformers itself answers, warns or raises for None, eager, paged and unknown names
    if name and name != "eager" and knows(name) and not name.startswith("paged|"):
        function = super(AttentionInterface, self).__getitem__(name)
        return partial(_through_the_cache, function, name)
    attention = _STOCK(self, attn_implementation, default)
    if attention is default:
        return partial(_through_the_cache, attention, attn_implementation or "eager")
    return attention


def _getitem(self: Any, key: str) -> Function:
    return partial(_through_the_cache, super(AttentionInterface, self).__getitem__(key), key)
