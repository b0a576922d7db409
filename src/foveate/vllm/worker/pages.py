"""Access to keys and values in vLLM's pages on a GPU.

A layer's cache is [pages, heads, slots, 2 * d], keys before values in the last axis, for FLASH_ATTN
and TRITON_ATTN alike. The order of axes in memory and the gap between pages depend on
``VLLM_KV_CACHE_LAYOUT``, and only the strides show them. So this code only indexes the cache, which
works with any strides, and never views or reshapes it.
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
    """Write pairs, numbers or codes, into these slots of the pool. ``layer`` is unused; it is there
    for the CPU backend's signature.
    """
    size = cache.shape[2]
    pairs = torch.cat([k, v], dim=-1).to(cache.dtype)
    cache.transpose(1, 2)[slots // size, slots % size] = pairs
