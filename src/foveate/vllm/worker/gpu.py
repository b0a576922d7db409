"""vLLM's backends FLASH_ATTN and TRITON_ATTN (GPUs), over compressed prompts."""

from __future__ import annotations

from foveate.vllm.vllm_api import flash_attention, triton_attention
from foveate.vllm.worker import pages
from foveate.vllm.worker.attention import Compressing
from foveate.vllm.worker.metadata import Rewriting

_FLASH, _TRITON = flash_attention(), triton_attention()


class FlashBuilder(Rewriting, _FLASH.builder):  # type: ignore[name-defined]
    """vLLM's builder over rows without their gap."""


class FlashImplementation(Compressing, _FLASH.implementation):  # type: ignore[name-defined]
    """vLLM's implementation with compression; pages store keys and values side by side."""

    read = staticmethod(pages.read)
    write = staticmethod(pages.write)


class FoveateFlash(_FLASH.backend):  # type: ignore[name-defined]
    """Backend with the two; behaves like vLLM's FLASH_ATTN if there is no policy."""

    get_builder_cls = staticmethod(lambda: FlashBuilder)
    get_impl_cls = staticmethod(lambda: FlashImplementation)


class TritonBuilder(Rewriting, _TRITON.builder):  # type: ignore[name-defined]
    """vLLM's builder over rows without their gap."""


class TritonImplementation(Compressing, _TRITON.implementation):  # type: ignore[name-defined]
    """vLLM's implementation with compression; pages store keys and values side by side."""

    read = staticmethod(pages.read)
    write = staticmethod(pages.write)


class FoveateTriton(_TRITON.backend):  # type: ignore[name-defined]
    """Backend with the two; behaves like vLLM's TRITON_ATTN if there is no policy."""

    get_builder_cls = staticmethod(lambda: TritonBuilder)
    get_impl_cls = staticmethod(lambda: TritonImplementation)
