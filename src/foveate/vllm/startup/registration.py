"""What vLLM has to know in every one of its processes, before the first engine is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple

from foveate.defaults import VARIABLE
from foveate.errors import FoveateError, InvalidParameter, UnsupportedEngine
from foveate.vllm.plans.fitting import check_fits
from foveate.vllm.plans.plans import PREFIX, Offer
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.plans.short import warning_of
from foveate.vllm.scheduler.blocks import CompressedManager, CompressedSpec
from foveate.vllm.startup.activation import activated
from foveate.vllm.startup.explaining import explain_failures
from foveate.vllm.startup.http import refuse_truths
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
    """vLLM's worker on a platform, and what stands for each of its attention backends, by name."""

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
    """Return the worker and the backends for a platform of vLLM's.

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


def register_all() -> None:
    """Register the manager of compressed groups, the attention backends, and the checks of an
    engine's arguments and of requests; any number of times.

    vLLM registers managers of its own only into an empty registry, so they come first. It also
    remembers the first backend that it chose in a process, so ours are there from the beginning; in
    engines without our worker each does what the one that it stands for does.

    Raises:
        UnsupportedEngine: a platform that cannot be served on.
    """
    backends = served().backends
    KVCacheSpecRegistry._ensure_registered()
    KVCacheSpecRegistry.register(
        CompressedSpec, CompressedManager, uniform_type_base_spec=FullAttentionSpec
    )
    for name, path in backends.items():
        register_backend(AttentionBackendEnum[name], path)
    if not hasattr(EngineArgs.create_engine_config, "__wrapped__"):
        EngineArgs.create_engine_config = activated(EngineArgs.create_engine_config)
    if not hasattr(InputProcessor.process_inputs, "__wrapped__"):
        InputProcessor.process_inputs = checked(InputProcessor.process_inputs)
    refuse_truths()
    explain_failures()


def checked(process_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """VLLM's reading of a request, after which what it asks of Foveate is known to be possible.

    vLLM has no other place where a request can be refused before it is one of the engine's: the
    error is the request's answer, over HTTP with status 400.
    """

    @wraps(process_inputs)
    def process(self: Any, *args: Any, **options: Any) -> Any:
        request = process_inputs(self, *args, **options)
        try:
            check_request(self.vllm_config, request)
        except FoveateError as error:
            send_images_again(self.renderer, request)
            raise VLLMValidationError(str(error)) from error
        return request

    return process


def send_images_again(renderer: Any, request: Any) -> None:
    """Lets vLLM's front forget the images of a request that never reaches the engine. It takes them
    for sent, and would send the next request that shows one of them without it, which then fails.
    """
    features = request.mm_features or ()
    hashes = [one.mm_hash for one in features if one.data is not None and one.mm_hash is not None]
    if renderer.mm_processor_cache is None or not hashes:
        return
    if hasattr(renderer, "queue_mm_cache_invalidations"):  # vLLM 0.33
        renderer.queue_mm_cache_invalidations(hashes)
        return
    for one in hashes:
        renderer.mm_processor_cache.invalidate(one)


def check_request(config: Any, request: Any) -> None:
    """Raise FoveateError where an engine of that configuration cannot serve the request."""
    given = getattr(request.sampling_params, "extra_args", None) or {}
    if _HERE not in str(config.parallel_config.worker_cls):
        extra = [name for name in given if str(name).startswith(PREFIX)]
        if extra:
            raise InvalidParameter(
                f"{extra[0]}: this engine was started without Foveate's worker, so nothing is "
                f"compressed. Start it with 'foveate serve', or with a policy in {VARIABLE}."
            )
        return
    if getattr(request, "resumable", False):
        raise InvalidParameter(
            "this request's prompt goes on after an answer (streamed input), and a compressed "
            "prompt cannot grow. Send every turn as a request of its own."
        )
    offer = Offer(settings_from(config.additional_config))
    prompt = len(request.prompt_token_ids or ())
    plan = offer.plan(given, prompt)
    check_fits(config, offer, plan, prompt)
    longest = config.model_config.max_model_len
    if short := warning_of(plan, config.cache_config.block_size, longest):
        logger.warning_once("%s", short)
