"""Caches of 8-bit codes (``--kv-cache-dtype fp8``): a code times its layer's scale is a number.

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


class Codes(NamedTuple):
    """Code type of one layer, and the scales of its keys and values."""

    type: torch.dtype
    k: float
    v: float

    @classmethod
    def of(cls, layer: Any) -> Codes | None:
        """Return the codes of a layer; None if its cache stores plain numbers."""
        kind = TYPES.get(getattr(layer, "kv_cache_dtype", "auto"))
        return None if kind is None else cls(kind, layer._k_scale_float, layer._v_scale_float)

    def decode(
        self, k: UInt8[Tensor, "*s d"], v: UInt8[Tensor, "*s d"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "*s d"], Float[Tensor, "*s d"]]:
        """Decode keys and values."""
        return (
            _decode(k.view(self.type), self.k, dtype),
            _decode(v.view(self.type), self.v, dtype),
        )

    def encode(
        self, k: Float[Tensor, "*s d"], v: Float[Tensor, "*s d"]
    ) -> tuple[UInt8[Tensor, "*s d"], UInt8[Tensor, "*s d"]]:
        """Encode keys and values, each number as the nearest code."""
        return _encode(k, self.k, self.type), _encode(v, self.v, self.type)

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
    return _decode(query, layer._q_scale_float, dtype)


def _decode(codes: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    return (codes.to(torch.float32) * scale).to(dtype)


def _encode(values: Tensor, scale: float, kind: torch.dtype) -> Tensor:
    limit = torch.finfo(kind).max
    scaled = (values.to(torch.float32) / scale).clamp(-limit, limit)
    return scaled.to(kind).view(torch.uint8)
