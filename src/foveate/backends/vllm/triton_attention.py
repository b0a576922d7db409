"""vLLM's backend TRITON_ATTN (GPUs), over compressed prompts."""

from __future__ import annotations

from foveate.backends.vllm import pages
from foveate.backends.vllm.attention import Compressing, Rewriting
from foveate.backends.vllm.vllm_api import triton_attention

_STOCK = triton_attention()


class Builder(Rewriting, _STOCK.builder):  # type: ignore[name-defined]
    """vLLM's builder, which is shown rows without their gap."""


class Implementation(Compressing, _STOCK.implementation):  # type: ignore[name-defined]
    """vLLM's implementation; keys and values stand side by side in their pages."""

    read = staticmethod(pages.read)
    write = staticmethod(pages.write)


class FoveateTriton(_STOCK.backend):  # type: ignore[name-defined]
    """vLLM's TRITON_ATTN where no policy is."""

    @staticmethod
    def get_impl_cls() -> type[Implementation]:
        return Implementation

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder
