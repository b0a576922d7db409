"""Checks of vLLM's options against a policy; errors name the option as the user wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foveate.errors import UnsupportedEngine
from foveate.policies.policy import Policy
from foveate.vllm.codes import TYPES
from foveate.vllm.plans.tiers import by_head, shaping
from foveate.vllm.startup.options import CLASSES, HERE, SCHEDULER
from foveate.vllm.startup.support import refuse

NGRAM = ("ngram", "[ngram]")
DRAFTERS = ("draft_model", "eagle", "eagle3", "mtp")
"""Methods of speculative decoding with layers of their own, whose cache stays whole."""
_LEAVE = "Leave it out, or serve without a policy"
_UNEQUAL = (
    "a budget that differs by layer or KV head. Use one that keeps the same number in all layers"
)


def check_arguments(args: Any, policies: Sequence[Policy]) -> None:
    """Refuse options that vLLM converts, or checks itself, before :func:`check_engine` runs.

    ``args`` are vLLM's ``EngineArgs``, before vLLM has inspected the model or any connector: it
    inspects a model in a process of its own, the slowest part before a start.

    Raises:
        UnsupportedEngine: names the option as the user wrote it.
    """
    method, option = _speculative(args)
    _check(
        _refused_splits(args, args.enable_dbo or args.ubatch_size > 1),
        method,
        f" ({option})",
    )
    _check_boundaries(policies, args)


def _speculative(args: Any) -> tuple[str | None, str]:
    """Return the method of speculative decoding, and the option that sets it; None without one, or
    if vLLM finds the method from the draft model.
    """
    if args.spec_method is not None:
        return _general(args.spec_method), "--spec-method"
    method = (args.speculative_config or {}).get("method")
    return _general(method), "--speculative-config"


def _general(method: str | None) -> str | None:
    """Return vLLM's general name of a method: each MTP model has an older name of its own."""
    return "mtp" if method is not None and method.endswith("_mtp") else method


def _refused_splits(sizes: Any, ubatching: bool) -> dict[str, bool]:
    """Return refused ways to split one request, and whether each is on. ``sizes`` has the fields of
    ``ParallelConfig``.
    """
    tokens = "a worker holds some of a request's tokens, and a policy ranks them all"
    refused = {
        "micro-batches (--enable-dbo, --ubatch-size): a pass is looked up as one batch": ubatching
    }
    for way in ("decode context", "prefill context"):
        size = getattr(sizes, f"{way.replace(' ', '_')}_parallel_size")
        option = f"--{way.replace(' ', '-')}-parallel-size {size}"
        refused[f"{way} parallelism ({option}): {tokens}"] = size > 1
    return refused


def check_engine(config: Any, policies: Sequence[Policy]) -> None:
    """Refuse settings that exclude compressed blocks. ``config`` is a ``VllmConfig``.

    Raises:
        UnsupportedEngine: names the setting.
    """
    cache, parallel = config.cache_config, config.parallel_config
    refused = {
        "a KV connector (--kv-transfer-config) and a budget by KV head, whose pages have another "
        "shape than the layers of a connector": (
            config.kv_transfer_config is not None and by_head(policies)
        ),
        "latent attention (MLA): its blocks hold latents, and scores read the keys and values of "
        "every head. foveate.compress() compresses such models in transformers": (
            config.model_config.use_mla
        ),
        f"a KV cache of {cache.cache_dtype!r} (--kv-cache-dtype); 'auto' and 'fp8' are served": (
            cache.cache_dtype not in ("auto", *TYPES)
        ),
        "an fp8 cache in some layers only (--kv-cache-dtype-skip-layers)": (
            cache.kv_cache_dtype_skip_layers
        ),
    }
    method = getattr(config.speculative_config, "method", None)
    _check(refused | _refused_splits(parallel, parallel.use_ubatching), method)
    _check_drafter(config, policies, method)
    _check_stages(config, policies)
    _check_boundaries(policies, config.scheduler_config)
    if HERE not in str(config.scheduler_config.scheduler_cls):
        raise UnsupportedEngine(
            "Foveate's worker needs Foveate's scheduler, which tells it which blocks are free. "
            f"Start vLLM with {SCHEDULER} {CLASSES[SCHEDULER]}, or by 'foveate serve'."
        )


def _check(refused: Mapping[str, Any], method: str | None, option: str = "") -> None:
    tried = ", ".join((NGRAM[0], *DRAFTERS))
    drafts = f"speculative decoding by {method!r}{option}: of its methods {tried} are served"
    refused = {**refused, drafts: method not in (None, *NGRAM, *DRAFTERS)}
    refuse("Foveate's worker cannot be combined with ", refused, f". {_LEAVE}.")


def _check_drafter(config: Any, policies: Sequence[Policy], method: str | None) -> None:
    """Refuse settings that exclude a drafter with layers, or its drafts.

    Asynchronous steps are scheduled before it is known which drafts were accepted, and so before
    the number of a request's tokens is known.
    """
    drafter = f"speculative decoding by {method!r} and "
    refused = {
        "asynchronous scheduling, which counts drafts before they are accepted. Add "
        "--no-async-scheduling": config.scheduler_config.async_scheduling,
        "vLLM's second model runner, which does not name the drafter's layers. Set "
        "VLLM_USE_V2_MODEL_RUNNER=0": config.use_v2_model_runner,
        _UNEQUAL: shaping(policies),
    }
    if method in DRAFTERS:
        refuse(f"Foveate's worker cannot be combined with {drafter}", refused, ".")


def _check_stages(config: Any, policies: Sequence[Policy]) -> None:
    """Refuse settings that exclude pipeline parallelism, where a worker has some of the layers."""
    size = config.parallel_config.pipeline_parallel_size
    untried = "which has not been tried. Leave out one of the two"
    refused = {
        f"speculative decoding, {untried}": config.speculative_config,
        f"a KV connector, {untried}": config.kv_transfer_config,
        "vLLM's second model runner, which has not been tried. Set VLLM_USE_V2_MODEL_RUNNER=0": (
            config.use_v2_model_runner
        ),
        _UNEQUAL: shaping(policies),
    }
    if size > 1:
        option = f"pipeline parallelism (--pipeline-parallel-size {size})"
        refuse(f"Foveate's worker cannot be combined with {option} and ", refused, ".")


def _check_boundaries(policies: Sequence[Policy], images: Any) -> None:
    """Refuse settings that exclude policies that compress repeatedly (``when=over_budget``)."""
    refused = {
        "images that are read in one piece (--disable-chunked-mm-input), as boundaries may lie "
        "within them": images.disable_chunked_mm_input,
    }
    for policy in policies:
        if policy.when.decodes or policy.when.reads:
            refuse(
                f"{policy} compresses again as tokens come, and cannot be combined with ",
                refused,
                ". Leave that out, or choose when=after_prefill.",
            )
