"""The attention functions that models ask transformers for, while a block is open.

A model keeps the name of its attention implementation in a block: some decide by it whether they
apply a sparse mask, and masks are made by it. So nothing is registered. Instead transformers'
``AttentionInterface`` hands out its functions wrapped: a wrapped function looks whether a cache
layer of ours returned the keys, and lets that layer attend; otherwise it is the function itself.
When the last block is left, the interface is what it was.
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
from foveate.hf.layer.fixed import FixedLayer
from foveate.hf.layer.state import Link
from foveate.hf.layer.turns import Call, CallTurn
from foveate.hf.layer.ways import attend, attend_shared_kv
from foveate.hf.model.internals import AttentionInterface, sdpa_attention_forward

Function = Callable[..., Output]

TAKES_MASKS = ("sdpa", "eager")
"""Implementations that take a mask over queries and columns; the others take one of their own kind,
or a tensor that says where padding stands."""

_NOT_OURS = ("softcap", "s_aux")
"""What some models give to their attention beside the tensors. Their own function computes it, and
none of ours stands in for it."""


@dataclass
class Reader:
    """A decoder in a block, and the call in which it reads; ``traced`` while what it reads is
    traced, where no call can be made.
    """

    decoder: nn.Module
    link: Link
    call: Call | None = None
    traced: bool = False

    @property
    def reads(self) -> bool:
        """Whether it is in its ``forward`` now."""
        if torch.compiler.is_compiling():
            return self.traced or self.call is not None
        return self.traced or (self.call is not None and self.call.runs())


readers: dict[int, Reader] = {}
"""By the identity of the decoder's configuration."""

lookers: dict[int, Callable[[Tensor, Tensor, Any, Mapping[str, Any]], None]] = {}
"""Who is shown the queries, keys, mask and other arguments of attention that no cache of ours
takes part in: by the identity of the module that asks for it.
"""


@cache
def knows(name: str | None) -> bool:
    """Whether the attention implementation of that name is one of transformers, or a kernel that
    transformers loads in the place of one. Asked at every layer of every step.
    """
    name = (name or "").removeprefix("paged|")
    return name in (*TAKES_MASKS, "flex_attention") or "flash" in name


def check_known(name: str | None, whose: str) -> None:
    """Raises UnsupportedModel where an attention implementation is none that can be followed."""
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
    """``function``; for keys that a cache of ours returned, the cache layer's attention."""
    layer: FoveateLayer | FixedLayer | None = getattr(key, LINK, None)
    if layer is None:
        _check_place(module)
        if (look := lookers.get(id(module))) is not None:
            look(query, key, attention_mask, kwargs)
        return function(module, query, key, value, attention_mask, **kwargs)
    if not knows(name):  # it may have been set inside the block
        check_known(name, f"{type(module).__name__}'s")
    if kwargs.get("position_bias") is not None:
        raise UnsupportedModel(
            f"{type(module).__name__} passes 'position_bias' to its attention, which goes by the "
            "place of a key and not by its position. This model cannot be compressed."
        )
    scale = kwargs.get("scaling")
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    attention = _of_model(function, name, module, kwargs)
    if isinstance(layer, FixedLayer):
        return layer.attend(attention, query, attention_mask, scale)
    if layer.state.shares_kv and getattr(module, "layer_idx", None) != layer.model_index:
        return attend_shared_kv(layer, attention, query, key, value, attention_mask, scale)
    return attend(layer, attention, query, attention_mask, scale)


def _of_model(
    function: Function, name: str, module: nn.Module, kwargs: dict[str, Any]
) -> ModelAttention:
    extra = None
    for each in _NOT_OURS:
        extra = each if kwargs.get(each) is not None else extra
    plain = partial(function, module, **kwargs)
    masked: Function = partial(sdpa_attention_forward, module, **kwargs)
    if extra:
        masked = partial(_no_mask, f"{type(module).__name__} passes {extra!r} to its {name}")
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


def _no_mask(why: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Output:
    raise UnsupportedModel(
        f"{why}, which takes no mask of what is kept. Load the model with "
        "attn_implementation='eager'."
    )


def in_backward() -> bool:
    """Whether a backward pass runs: with gradient checkpointing it calls layers once more."""
    return torch._C._current_graph_task_id() != -1


def _check_place(module: nn.Module) -> None:
    """Layers that are not compressed come here from within their decoder's ``forward``, and nothing
    else may: raises UnsupportedModel, or a prompt would be read and silently not be compressed.
    """
    reader = readers.get(id(getattr(module, "config", None)))
    if reader is None or reader.reads or in_backward():
        return
    if all(module is not part for part in reader.decoder.modules()):
        return  # of another model that shares the configuration
    whole = type(reader.decoder).__name__
    raise UnsupportedModel(
        f"{type(module).__name__} was called inside a compress() block, but not through a call of "
        f"its {whole}, so the prompt would not be compressed. Call model(...) or "
        "model.generate(...) instead of a forward() or a layer by itself."
    )


# Handing out wrapped functions

_turn = CallTurn()
_open: list[object] = []  # blocks that are open


def intercept(block: object) -> None:
    """Has the interface hand out wrapped functions, until the block is released."""
    call = _turn.take(sys._getframe())
    try:
        _open.append(block)
        AttentionInterface.get_interface = _get_interface  # type: ignore[method-assign]
        AttentionInterface.__getitem__ = _getitem  # type: ignore[method-assign]
    finally:
        call.end()


def release(block: object) -> None:
    """The block is open no more; nothing happens if it never was."""
    call = _turn.take(sys._getframe())
    try:
        _open[:] = [one for one in _open if one is not block]
        if not _open:
            AttentionInterface.get_interface = _STOCK  # type: ignore[method-assign]
            if "__getitem__" in vars(AttentionInterface):
                del AttentionInterface.__getitem__
    finally:
        call.end()


_STOCK = AttentionInterface.get_interface


def _get_interface(self: Any, attn_implementation: Any, default: Function) -> Function:
    name = attn_implementation
    # None, eager, paged ones and unknown names are transformers' to answer, warn of, or refuse
    if name and name != "eager" and knows(name) and not name.startswith("paged|"):
        function = super(AttentionInterface, self).__getitem__(name)
        return partial(_through_the_cache, function, name)
    attention = _STOCK(self, attn_implementation, default)
    if attention is default:
        return partial(_through_the_cache, attention, attn_implementation or "eager")
    return attention


def _getitem(self: Any, key: str) -> Function:
    return partial(_through_the_cache, super(AttentionInterface, self).__getitem__(key), key)
