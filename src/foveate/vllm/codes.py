"""Caches of 8-bit codes (``--kv-cache-dtype fp8``): a code times its scale is a number. A
layer has one scale for its keys and one for its values, or one for each KV head.

Attention and scores see the decoded numbers. Kept pairs are moved code by code; only pairs that a
policy has merged are encoded again, each number to the nearest code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

TYPES = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
"""The type of the codes, by vLLM's name of the cache's type."""


Scale = float | Tensor
"""A number, or a tensor of one number per KV head."""


class Codes(NamedTuple):
    """Code type of one layer, and the scales of its keys and values: one of each, or one per KV
    head.
    """

    type: torch.dtype
    k: Scale
    v: Scale

    @classmethod
    def of(cls, layer: Any) -> Codes | None:
        """Return the codes of a layer; None if its cache stores plain numbers."""
        kind = TYPES.get(getattr(layer, "kv_cache_dtype", "auto"))
        return None if kind is None else cls(kind, scale_of(layer, "k"), scale_of(layer, "v"))

    def decode(
        self, k: UInt8[Tensor, "*s d"], v: UInt8[Tensor, "*s d"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "*s d"], Float[Tensor, "*s d"]]:
        """Decode keys and values."""
        return (
            _decode(k.view(self.type), _along(self.k, -3), dtype),
            _decode(v.view(self.type), _along(self.v, -3), dtype),
        )

    def encode(
        self, k: Float[Tensor, "*s d"], v: Float[Tensor, "*s d"]
    ) -> tuple[UInt8[Tensor, "*s d"], UInt8[Tensor, "*s d"]]:
        """Encode keys and values, each number as the nearest code."""
        k_codes = _encode(k, _along(self.k, -2), self.type)
        return k_codes, _encode(v, _along(self.v, -2), self.type)

    def without_nans(self, codes: UInt8[Tensor, "*s"]) -> UInt8[Tensor, "*s"]:
        """Return the codes, with zero in place of codes for NaN or infinity."""
        return codes.masked_fill(~codes.view(self.type).to(torch.float32).isfinite(), 0)


def select_codes(
    codes: UInt8[Tensor, "1 h n d"], positions: Int[Tensor, "h k"]
) -> UInt8[Tensor, "k h d"]:
    """Return the codes at these positions of each head."""
    at = positions[..., None].expand(-1, -1, codes.shape[-1])
    return codes[0].gather(1, at).transpose(0, 1)


def decode_queries(layer: Any, query: Tensor, dtype: torch.dtype) -> Float[Tensor, "t hq d"]:
    """Return queries as numbers: on GPUs vLLM encodes them as well if the cache stores codes."""
    if query.dtype not in TYPES.values():
        return query
    scale = scale_of(layer, "q")
    if isinstance(scale, Tensor):  # one per KV head, which its query heads share
        scale = scale.repeat_interleave(query.shape[-2] // len(scale))
    return _decode(query, _along(scale, -2), dtype)


def scale_of(layer: Any, kind: str) -> Scale:
    """Return the scale of a layer's queries ("q"), keys ("k") or values ("v"): a number, or a
    tensor of one number per KV head. vLLM's ``_k_scale_float`` is the largest of these.
    """
    scales = getattr(layer, f"_{kind}_scale", None)
    if scales is not None and scales.numel() > 1:
        per_head: Tensor = scales.flatten()
        return per_head
    number: float = getattr(layer, f"_{kind}_scale_float")
    return number


def _along(scale: Scale, axis: int) -> Scale:
    """Return scales per KV head so that they apply along that axis of a tensor."""
    return scale.view(-1, *[1] * (-axis - 1)) if isinstance(scale, Tensor) else scale


def _decode(codes: Tensor, scale: Scale, dtype: torch.dtype) -> Tensor:
    return (codes.to(torch.float32) * scale).to(dtype)


def _encode(values: Tensor, scale: Scale, kind: torch.dtype) -> Tensor:
    limit = torch.finfo(kind).max
    scaled = (values.to(torch.float32) / scale).clamp(-limit, limit)
    return scaled.to(kind).view(torch.uint8)
