"""Which of vLLM's platforms can be served on, with which of its attention backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from foveate.backends.vllm.vllm_api import cpu_worker_class, current_platform, gpu_worker_class
from foveate.errors import UnsupportedEngine

_HERE = __name__.rpartition(".")[0]


class Served(NamedTuple):
    """vLLM's worker there, and what stands for each of its attention backends, by name."""

    worker: Callable[[], type]
    backends: Mapping[str, str]


CPU = Served(cpu_worker_class, {"CPU_ATTN": f"{_HERE}.cpu_attention.FoveateCPU"})
CUDA = Served(
    gpu_worker_class,
    {
        "FLASH_ATTN": f"{_HERE}.flash_attention.FoveateFlash",
        "TRITON_ATTN": f"{_HERE}.triton_attention.FoveateTriton",
    },
)


def served(platform: Any = current_platform) -> Served:
    """What serves on a platform of vLLM's.

    Raises:
        UnsupportedEngine: another one than CPUs and NVIDIA's GPUs.
    """
    if platform.is_cpu():
        return CPU
    if platform.is_cuda():
        return CUDA
    raise UnsupportedEngine(
        f"Foveate's worker runs on vLLM's platforms for CPUs and for NVIDIA's GPUs (CUDA), and "
        f"vLLM runs on {platform.device_name!r} here."
    )
