"""The attention and mask functions that transformers calls, registered once at import.

The name must not contain "sdpa", "flash" or "flex": transformers branches on those. Registering a
mask function beside the attention function matters: without one, transformers builds no mask at all
and left padding is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from foveate.backends.hf.attention.by_products import Output
from foveate.backends.hf.cache_layer import LINK, FoveateLayer
from foveate.backends.hf.internals import (
    ALL_ATTENTION_FUNCTIONS,
    ALL_MASK_ATTENTION_FUNCTIONS,
    eager_attention,
    eager_mask,
    sdpa_attention_forward,
    sdpa_mask,
)
from foveate.errors import UnsupportedModel


@dataclass
class Reader:
    """A model in a block, and whether it is in its own ``forward`` now."""

    model: nn.Module
    reads: bool = False


readers: dict[int, Reader] = {}
"""By the identity of the text configuration, whose attention is ours inside the block."""

NAMES = {"sdpa": "foveate", "eager": "foveate_eager"}
_UNREAD = ("softcap", "s_aux", "position_bias")


def _through_the_cache(base: Callable[..., Output]) -> Callable[..., Output]:
    """``base`` for keys that no cache of ours returned, the cache layer's attention for ours."""

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> Output:
        layer: FoveateLayer | None = getattr(key, LINK, None)
        if layer is None:
            _check_place(module)
            return base(module, query, key, value, attention_mask, **kwargs)
        for name in _UNREAD:
            if kwargs.get(name) is not None:
                raise UnsupportedModel(
                    f"{type(module).__name__} passes {name!r} to its attention, which the scores "
                    "and the ragged attention do not model. This model cannot be compressed."
                )

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Output:
            return base(module, q, k, v, mask, **kwargs)

        scale = kwargs.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        summable = base is sdpa_attention_forward and not kwargs.get("dropout")
        return layer.attend(attend, query, attention_mask, scale, summable=summable)

    return forward


def _check_place(module: nn.Module) -> None:
    """Layers that are not compressed come here from within their model's ``forward``, and nothing
    else may: raises UnsupportedModel, or a prompt would be read and silently not be compressed.
    """
    config, name = getattr(module, "config", None), type(module).__name__
    reader = readers.get(id(config))
    if config is None or (reader is not None and reader.reads):
        return
    if reader is None:
        raise UnsupportedModel(
            f"this {name} has the attention of a compress() block that it is not in: a part of a "
            "model, or its configuration, was copied inside the block. Copy the whole model, or "
            "copy before the block is entered."
        )
    if all(module is not part for part in reader.model.modules()):
        return  # of another model that shares the configuration
    whole = type(reader.model).__name__
    raise UnsupportedModel(
        f"{name} was called inside a compress() block, but not from the forward() of the {whole} "
        "that the block is for, so the prompt would not be compressed. Call model(...) or "
        "model.generate(...) itself. If its generate() hands over to a model inside it, as that of "
        "BLIP-2 and Kosmos-2 does, give that one to compress(), such as model.language_model."
    )


for _implementation, _base, _mask in (
    ("sdpa", sdpa_attention_forward, sdpa_mask),
    ("eager", eager_attention, eager_mask),
):
    ALL_ATTENTION_FUNCTIONS.register(NAMES[_implementation], _through_the_cache(_base))
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAMES[_implementation], _mask)
