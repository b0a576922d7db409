"""Caches of codes (``--kv-cache-dtype fp8``): 8 bits that stand for a number, once they are
multiplied by their layer's scale.

Attention sees what the codes stand for, and so do scores. Pairs that stay are moved code by code;
only those that a policy has merged are coded anew, each number as the nearest.
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
"""What codes are, by vLLM's name of the cache's type."""


class Codes(NamedTuple):
    """Those of one layer, and the scales of its keys and values."""

    type: torch.dtype
    k: float
    v: float

    @classmethod
    def of(cls, layer: Any) -> Codes | None:
        """None where the layer's cache holds the numbers themselves."""
        kind = TYPES.get(getattr(layer, "kv_cache_dtype", "auto"))
        return None if kind is None else cls(kind, layer._k_scale_float, layer._v_scale_float)

    def values(
        self, k: UInt8[Tensor, "*s d"], v: UInt8[Tensor, "*s d"], dtype: torch.dtype
    ) -> tuple[Float[Tensor, "*s d"], Float[Tensor, "*s d"]]:
        """Return the numbers that keys and values stand for."""
        return (
            _scaled(k.view(self.type), self.k, dtype),
            _scaled(v.view(self.type), self.v, dtype),
        )

    def coded(
        self, k: Float[Tensor, "*s d"], v: Float[Tensor, "*s d"]
    ) -> tuple[UInt8[Tensor, "*s d"], UInt8[Tensor, "*s d"]]:
        """Return the codes that are nearest to keys and values."""
        return _coded(k, self.k, self.type), _coded(v, self.v, self.type)

    def numbers_only(self, codes: UInt8[Tensor, "*s"]) -> UInt8[Tensor, "*s"]:
        """Return the codes, with zero where they stand for no number."""
        return codes.masked_fill(~codes.view(self.type).to(torch.float32).isfinite(), 0)


def chosen(
    codes: UInt8[Tensor, "1 h n d"], positions: Int[Tensor, "h k"]
) -> UInt8[Tensor, "k h d"]:
    """Return the codes at these positions of each head."""
    at = positions[..., None].expand(-1, -1, codes.shape[-1])
    return codes[0].gather(1, at).transpose(0, 1)


def plain_queries(layer: Any, query: Tensor, dtype: torch.dtype) -> Float[Tensor, "t hq d"]:
    """Return queries as numbers: on GPUs vLLM codes them as well, if the cache holds codes."""
    if query.dtype not in TYPES.values():
        return query
    return _scaled(query, layer._q_scale_float, dtype)


def _scaled(codes: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    return (codes.to(torch.float32) * scale).to(dtype)


def _coded(values: Tensor, scale: float, kind: torch.dtype) -> Tensor:
    most = torch.finfo(kind).max
    scaled = (values.to(torch.float32) / scale).clamp(-most, most)
    return scaled.to(kind).view(torch.uint8)
