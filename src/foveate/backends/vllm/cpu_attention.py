"""vLLM's backend for CPUs, CPU_ATTN, over compressed prompts."""

from __future__ import annotations

from foveate.backends.vllm import cpu_pages
from foveate.backends.vllm.attention import Compressing, Rewriting
from foveate.backends.vllm.vllm_api import (
    CPUAttentionBackend,
    CPUAttentionBackendImpl,
    CPUAttentionMetadataBuilder,
)


class Builder(Rewriting, CPUAttentionMetadataBuilder):
    """vLLM's builder, which is shown rows without their gap."""

    def check_layout(self) -> None:
        """Raises UnsupportedEngine where the kernels' instruction set packs keys."""
        cpu_pages.check_layout(self.isa, self.block_size)


class Implementation(Compressing, CPUAttentionBackendImpl):
    """vLLM's implementation; keys are transposed in their pages."""

    read = staticmethod(cpu_pages.read)
    write = staticmethod(cpu_pages.write)


class FoveateCPU(CPUAttentionBackend):
    """vLLM's CPU_ATTN where no policy is."""

    @staticmethod
    def get_impl_cls() -> type[Implementation]:
        return Implementation

    @staticmethod
    def get_builder_cls() -> type[Builder]:
        return Builder
