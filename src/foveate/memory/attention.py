"""Attention on the "meta" device: stand-ins for fused kernels, and a switch of implementation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from foveate.defaults import AttentionName

FLASH = "flash_attention_2"


class FusedAttention(TorchFunctionMode):
    """Context in which SDPA allocates as little as its fused kernels: no matrix of queries times
    keys.

    The kernels convert a boolean mask to numbers, and return [b, h, n, d] with the memory layout of
    [b, n, h, d], plus the logarithms of the sums.

    ``flops`` counts operations; a causal kernel does half of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        arguments = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        q, k, v, mask = (arguments.get(name) for name in ("query", "key", "value", "attn_mask"))
        if not (q.is_meta or k.is_meta or v.is_meta):
            return func(*args, **kwargs)
        return self.attend(q, v, mask, bool(arguments.get("is_causal")))

    def attend(
        self, q: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """Return a fused kernel's output [b, h, n, e] for queries [b, h, n, d] and values
        [b, g, m, e], after its allocations.
        """
        bias = None
        if mask is not None and mask.dtype == torch.bool:
            bias = torch.empty(mask.shape, dtype=q.dtype, device="meta")
        rows, heads, count = q.shape[:3]
        products = 2 * q.numel() * v.shape[2] + 2 * rows * heads * count * v.shape[2] * v.shape[3]
        self.flops += products // (2 if causal else 1)
        out = torch.empty(rows, count, heads, v.shape[-1], dtype=q.dtype, device="meta")
        sums = torch.empty(rows, count, heads, dtype=torch.float32, device="meta")
        del bias, sums
        return out.transpose(1, 2)


@contextmanager
def use_attention(model: PreTrainedModel, name: AttentionName | None) -> Iterator[FusedAttention]:
    """Switch the model and its tower to that attention implementation; None keeps its own. Yields
    the stand-in for fused kernels, which counts their operations.

    flash_attention_2 needs no package here: its output has the shape of SDPA's, and it takes no
    mask.
    """
    configs = _configs(model.config)
    before = [getattr(config, "_attn_implementation_internal", None) for config in configs]
    functions = ALL_ATTENTION_FUNCTIONS._local_mapping
    known, fused = dict(functions), FusedAttention()
    with ExitStack() as undo:
        undo.callback(functions.update, known)
        undo.callback(functions.clear)
        functions[FLASH] = partial(_flash, fused)
        for config, old in zip(configs, before, strict=True):
            undo.callback(setattr, config, "_attn_implementation_internal", old)
            if name is not None:
                config._attn_implementation_internal = name
        undo.enter_context(fused)
        yield fused


def _configs(config: Any) -> list[Any]:
    inner = [getattr(config, name, None) for name in config.sub_configs]
    return [config, *(each for sub in inner if sub is not None for each in _configs(sub))]


def _flash(
    fused: FusedAttention,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    causal = bool(getattr(module, "is_causal", False)) and query.shape[2] > 1
    return fused.attend(query, value, causal=causal).transpose(1, 2), None
