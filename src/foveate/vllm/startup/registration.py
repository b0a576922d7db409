"""Registration of Foveate in each of vLLM's processes, before the first engine is created."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple

from foveate.defaults import VARIABLE
from foveate.errors import FoveateError, InvalidParameter, UnsupportedEngine
from foveate.vllm.plans.context_warning import warning_of
from foveate.vllm.plans.plans import PREFIX, Offer
from foveate.vllm.plans.pool_check import check_fits
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.scheduler.blocks import CompressedManager, CompressedSpec
from foveate.vllm.startup.activation import wrap_create_config
from foveate.vllm.startup.draining import refuse_while_draining
from foveate.vllm.startup.failure_messages import explain_failures
from foveate.vllm.startup.http import refuse_booleans
from foveate.vllm.startup.request_checks import check_bidirectional, check_session, check_transfer
from foveate.vllm.vllm_api import (
    AttentionBackendEnum,
    EngineArgs,
    FullAttentionSpec,
    InputProcessor,
    KVCacheSpecRegistry,
    VLLMValidationError,
    cpu_worker_class,
    current_platform,
    gpu_worker_class,
    init_logger,
    register_backend,
)

_HERE = "foveate.vllm"
logger = init_logger("vllm.foveate.requests")


class ServedPlatform(NamedTuple):
    """vLLM's worker class for a platform, and Foveate's subclass of each of its attention backends,
    by the backend's name.
    """

    worker: Callable[[], type]
    backends: Mapping[str, str]


CPU = ServedPlatform(cpu_worker_class, {"CPU_ATTN": f"{_HERE}.worker.cpu.FoveateCPU"})
CUDA = ServedPlatform(
    gpu_worker_class,
    {
        "FLASH_ATTN": f"{_HERE}.worker.gpu.FoveateFlash",
        "TRITON_ATTN": f"{_HERE}.worker.gpu.FoveateTriton",
    },
)


def served(platform: Any = current_platform) -> ServedPlatform:
    """Return the worker and the backends for one of vLLM's platforms.

    Raises:
        UnsupportedEngine: a platform other than CPUs and NVIDIA's GPUs.
    """
    if platform.is_cpu():
        return CPU
    if platform.is_cuda():
        return CUDA
    raise UnsupportedEngine(
        f"Foveate's worker runs on vLLM's platforms for CPUs and for NVIDIA's GPUs (CUDA), and "
        f"vLLM runs on {platform.device_name!r} here. Serve without a policy there."
    )


def register_all() -> None:
    """Register the manager of compressed groups, the attention backends, and the checks of an
    engine's arguments and of requests. Idempotent.

    vLLM registers its own managers only into an empty registry, so they are registered first. It
    also caches the first backend chosen in a process, so ours must be there from the beginning; in
    engines without our worker each behaves like the backend that it replaces.

    Raises:
        UnsupportedEngine: an unsupported platform.
    """
    backends = served().backends
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(
        CompressedSpec, CompressedManager, uniform_type_base_spec=FullAttentionSpec
    )
    for name, path in backends.items():
        register_backend(AttentionBackendEnum[name], path)
    if not hasattr(EngineArgs.create_engine_config, "__wrapped__"):
        EngineArgs.create_engine_config = wrap_create_config(EngineArgs.create_engine_config)
    if not hasattr(InputProcessor.process_inputs, "__wrapped__"):
        InputProcessor.process_inputs = wrap_process_inputs(InputProcessor.process_inputs)
    refuse_booleans()
    explain_failures()
    refuse_while_draining()


def wrap_process_inputs(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap vLLM's ``process_inputs`` with a check of the request's Foveate arguments.

    It is vLLM's only hook before a request reaches the engine: the error becomes the request's
    answer, over HTTP with status 400.
    """

    @wraps(process_inputs)
    def process(self: Any, *args: Any, **options: Any) -> Any:
        request = process_inputs(self, *args, **options)
        try:
            check_request(self.vllm_config, request)
        except FoveateError as error:
            forget_images(self.renderer, request)
            raise VLLMValidationError(str(error)) from error
        return request

    return process


def forget_images(renderer: Any, request: Any) -> None:
    """Remove a refused request's images from the cache of vLLM's front end. It takes them as sent
    to the engine, so the next request with the same image would be sent without it, and fail.
    """
    features = request.mm_features or ()
    sent = [feature.mm_hash for feature in features if feature.data is not None]
    hashes = [digest for digest in sent if digest is not None]
    if renderer.mm_processor_cache is None or not hashes:
        return
    if hasattr(renderer, "queue_mm_cache_invalidations"):  # vLLM 0.33
        renderer.queue_mm_cache_invalidations(hashes)
        return
    for digest in hashes:
        renderer.mm_processor_cache.invalidate(digest)


def check_request(config: Any, request: Any) -> None:
    """Raise FoveateError if an engine with that configuration cannot serve the request."""
    extra_args = getattr(request.sampling_params, "extra_args", None) or {}
    if _HERE not in str(config.parallel_config.worker_cls):
        extra = [name for name in extra_args if str(name).startswith(PREFIX)]
        if extra:
            raise InvalidParameter(
                f"{extra[0]}: this engine was started without Foveate's worker, so nothing is "
                f"compressed. Start it with 'foveate serve', or with a policy in {VARIABLE}."
            )
        return
    offer = Offer(settings_from(config.additional_config))
    prompt = len(request.prompt_token_ids or ())
    plan = offer.plan(extra_args, prompt)
    check_session(config.scheduler_config, plan, request)
    if config.model_config.is_mm_prefix_lm:
        check_bidirectional(plan, request.mm_features)
    check_transfer(config.kv_transfer_config, plan, extra_args)
    check_fits(config, offer, plan, prompt)
    longest = config.model_config.max_model_len
    if short := warning_of(plan, config.cache_config.block_size, longest):
        logger.warning_once("%s", short)
