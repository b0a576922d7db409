"""Foveate's subclasses of vLLM's attention backends for GPUs, FLASH_ATTN and TRITON_ATTN.

A backend consists of a metadata builder and an attention implementation. Both get a mixin of
Foveate's in front (:mod:`foveate.vllm.worker.attention`). The *gap* of a prompt is the blocks that
compression has freed (:mod:`foveate.vllm.plans.gap`).
"""

from __future__ import annotations

from foveate.vllm.vllm_api import flash_attention, triton_attention
from foveate.vllm.worker import pages
from foveate.vllm.worker.attention import Compressing
from foveate.vllm.worker.metadata import Rewriting

# Importing vLLM's classes queries the device. So Foveate registers its backends by their path, and
# vLLM imports this module once it has chosen one of them.
_FLASH, _TRITON = flash_attention(), triton_attention()


class FlashBuilder(Rewriting, _FLASH.builder):  # type: ignore[name-defined]
    """FLASH_ATTN's metadata builder; it leaves the gap out of each row of the block table."""


class FlashImplementation(Compressing, _FLASH.implementation):  # type: ignore[name-defined]
    """FLASH_ATTN's attention, which then compresses the prompts that the pass has completed."""

    read = staticmethod(pages.read)
    write = staticmethod(pages.write)


class FoveateFlash(_FLASH.backend):  # type: ignore[name-defined]
    """FLASH_ATTN with this builder and implementation; the same as vLLM's if no policy is set."""

    get_builder_cls = staticmethod(lambda: FlashBuilder)
    get_impl_cls = staticmethod(lambda: FlashImplementation)


class TritonBuilder(Rewriting, _TRITON.builder):  # type: ignore[name-defined]
    """TRITON_ATTN's metadata builder; it leaves the gap out of each row of the block table."""


class TritonImplementation(Compressing, _TRITON.implementation):  # type: ignore[name-defined]
    """TRITON_ATTN's attention, which then compresses the prompts that the pass has completed."""

    read = staticmethod(pages.read)  # FLASH_ATTN and TRITON_ATTN store pages alike
    write = staticmethod(pages.write)


class FoveateTriton(_TRITON.backend):  # type: ignore[name-defined]
    """TRITON_ATTN with this builder and implementation; the same as vLLM's if no policy is set."""

    get_builder_cls = staticmethod(lambda: TritonBuilder)
    get_impl_cls = staticmethod(lambda: TritonImplementation)
