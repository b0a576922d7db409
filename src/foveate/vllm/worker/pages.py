"""Keys and values in vLLM's pages on a GPU: reading a request's, and writing them elsewhere.

A layer's cache is [pages, heads, slots, 2 * d], keys before values in the last axis, for FLASH_ATTN
and TRITON_ATTN alike. In which order the axes lie in memory, and what lies between two pages, is
vLLM's choice (``VLLM_KV_CACHE_LAYOUT``) and shows in the strides alone. So everything here is
indexing, which any strides allow; nothing views or reshapes the cache itself.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int, Real
from torch import Tensor


def read(
    cache: Real[Tensor, "p h s x"], row: Int[Tensor, "c"], tokens: int
) -> tuple[Real[Tensor, "1 h n d"], Real[Tensor, "1 h n d"]]:
    """Return copies of a request's first ``tokens`` keys and values; ``row`` is its block table."""
    _, heads, slots, width = cache.shape
    pages = cache[row[: -(-tokens // slots)].long()]
    pairs = pages.transpose(0, 1).reshape(1, heads, -1, width)[:, :, :tokens]
    k, v = pairs.chunk(2, dim=-1)
    return k.contiguous(), v.contiguous()


def write(
    cache: Real[Tensor, "p h s x"],
    layer: Any,
    k: Real[Tensor, "n h d"],
    v: Real[Tensor, "n h d"],
    slots: Int[Tensor, "n"],
) -> None:
    """Write pairs into these slots of the pool. ``layer`` has no say: its cache holds numbers or
    codes as they are given here.
    """
    size = cache.shape[2]
    pairs = torch.cat([k, v], dim=-1).to(cache.dtype)
    cache.transpose(1, 2)[slots // size, slots % size] = pairs
