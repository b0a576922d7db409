"""The attention and mask functions that transformers calls, registered once at import.

The name must not contain "sdpa", "flash" or "flex": transformers branches on those. Registering a
mask function beside the attention function matters: without one, transformers builds no mask at all
and left padding is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from foveate.backends.hf.attend import Output
from foveate.backends.hf.internals import (
    ALL_ATTENTION_FUNCTIONS,
    ALL_MASK_ATTENTION_FUNCTIONS,
    eager_attention,
    eager_mask,
    sdpa_attention_forward,
    sdpa_mask,
)
from foveate.backends.hf.layer import LINK, FoveateLayer
from foveate.core.errors import UnsupportedModel

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


for _implementation, _base, _mask in (
    ("sdpa", sdpa_attention_forward, sdpa_mask),
    ("eager", eager_attention, eager_mask),
):
    ALL_ATTENTION_FUNCTIONS.register(NAMES[_implementation], _through_the_cache(_base))
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAMES[_implementation], _mask)
