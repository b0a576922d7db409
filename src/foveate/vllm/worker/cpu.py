"""vLLM's backend for CPUs, CPU_ATTN, over compressed prompts.

A layer's cache is [pages, heads, slots, 2 * d]. In memory a page's head is its keys, transposed to
[d, slots] if the kernels' instruction set is "vec", and then its values, [slots, d]. Numbers are
written by vLLM's own operator. Codes are not, because the operator would encode them again.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int, Real, UInt8
from torch import Tensor

from foveate.errors import UnsupportedEngine
from foveate.vllm.vllm_api import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
    cpu_ops,
)
from foveate.vllm.worker.attention import Compressing
from foveate.vllm.worker.metadata import Rewriting

READABLE = "vec"


def check_layout(isa: str, block: int) -> None:
    """Raise UnsupportedEngine unless the kernels store keys in the layout that ``read`` expects."""
    if isa != READABLE:
        raise UnsupportedEngine(
            f"vLLM's CPU kernels keep keys in the layout {isa!r} here, and Foveate reads "
            f"{READABLE!r} alone. Start vLLM with --dtype float32 and a --block-size that is a "
            f"multiple of 32 (it is {block})."
        )


def halves(cache: Real[Tensor, "p h s x"]) -> tuple[Tensor, Tensor]:
    """Return views of keys and values of all pages, [p, h, s, d] each, as vLLM's operators take
    them.
    """
    pages, heads, slots, _ = cache.shape
    keys, values = cache.view(pages, heads, 2 * slots, -1).chunk(2, dim=2)
    return keys, values


def read(
    cache: Real[Tensor, "p h s x"], row: Int[Tensor, "c"], tokens: int
) -> tuple[Real[Tensor, "1 h n d"], Real[Tensor, "1 h n d"]]:
    """Return copies of a request's first ``tokens`` keys and values; ``row`` is its block table."""
    keys, values = halves(cache)
    _, heads, slots, d = keys.shape
    pages = row[: -(-tokens // slots)].long()
    k = keys[pages].reshape(len(pages), heads, d, slots).transpose(2, 3)
    k, v = (t.transpose(0, 1).reshape(1, heads, -1, d)[:, :, :tokens] for t in (k, values[pages]))
    return k, v


def write(
    cache: Real[Tensor, "p h s x"],
    layer: Any,
    k: Real[Tensor, "n h d"],
    v: Real[Tensor, "n h d"],
    slots: Int[Tensor, "n"],
) -> None:
    """Write pairs into these slots of the pool. ``layer`` is vLLM's attention layer."""
    keys, values = halves(cache)
    if cache.dtype == torch.uint8:
        _write_codes(keys, values, k, v, slots)
        return
    cpu_ops.cpu_attn_reshape_and_cache(
        k.contiguous(),
        v.contiguous(),
        keys,
        values,
        slots,
        layer.isa,
        k_scale=layer._k_scale_float,
        v_scale=layer._v_scale_float,
        kv_cache_dtype="auto",
    )


def _write_codes(
    keys: UInt8[Tensor, "p h s d"],
    values: UInt8[Tensor, "p h s d"],
    k: UInt8[Tensor, "n h d"],
    v: UInt8[Tensor, "n h d"],
    slots: Int[Tensor, "n"],
) -> None:
    pages, heads, size, d = keys.shape
    page, slot = slots // size, slots % size
    keys.view(pages, heads, d, size)[page, :, :, slot] = k
    values[page, :, slot] = v


class Builder(Rewriting, CPUAttentionMetadataBuilder):
    """vLLM's builder over rows without their gap."""

    def check_layout(self) -> None:
        """Raise UnsupportedEngine where the kernels' instruction set packs keys."""
        check_layout(self.isa, self.block_size)


class Implementation(Compressing, CPUAttentionBackendImpl):
    """vLLM's implementation with compression; keys are transposed in their pages."""

    read = staticmethod(read)
    write = staticmethod(write)


class FoveateCPU(CPUAttentionBackend):
    """Backend with the two; behaves like vLLM's CPU_ATTN if there is no policy."""

    get_builder_cls = staticmethod(lambda: Builder)
    get_impl_cls = staticmethod(lambda: Implementation)
