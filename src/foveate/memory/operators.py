"""Operators that the "meta" device does not have as the others do, or that look at numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_COMPARE = {_aten.ne.Scalar, _aten.ne.Tensor, _aten.gt.Scalar, _aten.gt.Tensor}
_FEW = 2**16


def returned(func: Any, args: tuple[Any, ...]) -> Any:
    """What an operator returns where that has to be told; None of others.

    Which of a few images hold more than padding is asked of their pixels: all of them do.
    """
    if func is _aten.index.Tensor:
        return _chosen(args[0], args[1])
    if func is _aten._grouped_mm.default and (args[0].dim(), args[1].dim()) == (2, 3):
        return args[0].new_empty((args[0].shape[0], args[1].shape[2]), device="meta")
    if func in _COMPARE and args[0].is_meta and args[0].numel() <= _FEW:
        return torch.ones(args[0].shape, dtype=torch.bool, device="cpu")
    return None


def flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Operations of a matrix product, multiplications and additions, by its shapes; 0 of others."""
    if func is _aten._grouped_mm.default and (args[0].dim(), args[1].dim()) == (2, 3):
        return 2 * int(args[0].numel()) * int(args[1].shape[2])
    count = flop_registry.get(getattr(func, "overloadpacket", None))
    return 0 if count is None else int(count(*args, **kwargs, out_val=out))


def _chosen(x: Tensor, where: list[Tensor | None]) -> Tensor | None:
    """``x[mask]``: as many as a real mask has, all of one without numbers."""
    masks = [place for place, one in enumerate(where) if one is not None]
    if len(masks) != 1:
        return None
    (place,) = masks
    mask = where[place]
    if mask is None or mask.dtype != torch.bool:
        return None
    count = mask.numel() if mask.is_meta else int(mask.sum())
    shape = (*x.shape[:place], count, *x.shape[place + mask.dim() :])
    return x.new_empty(shape, device="meta")


class FusedAttention(TorchFunctionMode):
    """Inside, SDPA takes what its fused kernels take: no matrix of queries times keys.

    They get a mask of True and False as numbers, and return [b, h, n, d] that lies as [b, n, h, d]
    does, with the logarithms of the sums beside it.

    ``flops`` are the operations so far; a causal kernel does half of them.
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
        given = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | kwargs
        q, k, v, mask = (given.get(name) for name in ("query", "key", "value", "attn_mask"))
        if not (q.is_meta or k.is_meta or v.is_meta):
            return func(*args, **kwargs)
        return self.attended(q, v, mask, bool(given.get("is_causal")))

    def attended(
        self, q: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """What a fused kernel returns of queries [b, h, n, d] and values [b, g, m, e]:
        [b, h, n, e].
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
