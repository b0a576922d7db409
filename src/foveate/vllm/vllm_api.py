"""All imports of vLLM's internals.

They change between minor versions. An untested version fails here with a message that names the
tested ones; ``tests/serving`` tests the behaviour of each name that Foveate uses.

Importing this module raises:
    MissingPackage: vLLM is not installed.
    UnsupportedEngine: the installed version was not tested, or lacks one of these names.
"""
# ruff: noqa: F401  (the names are imported for others)

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, NamedTuple

from foveate.errors import MissingPackage, UnsupportedEngine

TRIED = ((0, 32), (0, 34))
"""Tested versions of vLLM: from the first up to, but without, the second."""


def check_version(version: str) -> None:
    """Raise UnsupportedEngine unless this version of vLLM was tested."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    installed = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if not TRIED[0] <= installed < TRIED[1]:
        first, end = (".".join(map(str, v)) for v in TRIED)
        raise UnsupportedEngine(
            f"vLLM {version} is installed, and Foveate's worker was tried with vLLM >={first},"
            f"<{end}. Install one of these, or start vLLM without this worker."
        )


try:
    import vllm
except ImportError as missing:
    raise MissingPackage("serving with vLLM", "vllm", extra="vllm") from missing

check_version(vllm.__version__)

try:
    from vllm import _custom_ops as cpu_ops
    from vllm.config import CUDAGraphMode, VllmConfig
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group
    from vllm.engine.arg_utils import EngineArgs
    from vllm.exceptions import GenerationError, GracefulHTTPError, VLLMValidationError
    from vllm.forward_context import get_forward_context
    from vllm.logger import init_logger
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform
    from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
    from vllm.v1.attention.backends.cpu_attn import (
        CPUAttentionBackend,
        CPUAttentionBackendImpl,
        CPUAttentionMetadata,
        CPUAttentionMetadataBuilder,
    )
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    from vllm.v1.core.kv_cache_utils import KVCacheBlockCopy, make_block_hash_with_group_id
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
    from vllm.v1.engine import FinishReason
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.output_processor import RequestState
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheSpec,
        KVQuantMode,
    )
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry
    from vllm.v1.outputs import AsyncModelRunnerOutput
except ImportError as other:
    raise UnsupportedEngine(
        f"vLLM {vllm.__version__} lacks a name that Foveate's worker relies on: {other}."
    ) from other


def _found(module: str, name: str) -> Any:
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as other:
        raise UnsupportedEngine(
            f"vLLM {vllm.__version__} has no {name} that can be imported here: {other}."
        ) from other


def cpu_worker_class() -> type:
    """Return vLLM's worker class for CPUs; its import sets up shared memory, so it comes late."""
    worker: type = _found("vllm.v1.worker.cpu_worker", "CPUWorker")
    return worker


def gpu_worker_class() -> type:
    """Return vLLM's worker class for GPUs."""
    worker: type = _found("vllm.v1.worker.gpu_worker", "Worker")
    return worker


class Attention(NamedTuple):
    """Classes of one of vLLM's attention backends."""

    backend: Any
    implementation: Any
    builder: Any


def flash_attention() -> Attention:
    """Return FLASH_ATTN's classes; on a GPU their import queries the device, so it comes late."""
    return _attention("vllm.v1.attention.backends.flash_attn", "FlashAttention")


def triton_attention() -> Attention:
    """Return TRITON_ATTN's classes."""
    return _attention("vllm.v1.attention.backends.triton_attn", "TritonAttention")


def _attention(module: str, name: str) -> Attention:
    return Attention(
        *(_found(module, name + end) for end in ("Backend", "Impl", "MetadataBuilder"))
    )
