"""Checks of vLLM's options against a policy; errors name the option as the user wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foveate.errors import UnsupportedEngine
from foveate.policies.policy import Policy
from foveate.vllm.codes import TYPES
from foveate.vllm.plans.tiers import by_head
from foveate.vllm.startup.options import CLASSES, HERE, SCHEDULER
from foveate.vllm.startup.support import refuse

NGRAM = ("ngram", "[ngram]")
MODELLESS = ("suffix", "ngram_gpu", "custom_class")
"""Methods of speculative decoding, beside n-grams, without layers of their own."""
_LEAVE = "Leave it out, or serve without a policy"


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
    _check_boundaries(policies, method, args, args.kv_cache_dtype)


def _speculative(args: Any) -> tuple[str | None, str]:
    """Return the method of speculative decoding, and the option that sets it; None without one."""
    flags = {"--spec-method": args.spec_method, "--spec-model": args.spec_model}
    for option, value in flags.items():
        if value is not None:
            return value, option
    drafts = args.speculative_config or {}
    if not drafts:
        return None, ""
    return drafts.get("method") or drafts.get("model") or "", "--speculative-config"


def _drafts(method: str | None) -> str:
    if method in MODELLESS:
        return "of the methods without a model, only 'ngram' is served"
    return (
        "the draft model's layers would be compressed like the model's own. Use 'ngram', which has "
        "no layers"
    )


def _refused_splits(sizes: Any, ubatching: bool) -> dict[str, bool]:
    """Return refused ways to split one request, and whether each is on. ``sizes`` has the fields of
    ``ParallelConfig``.
    """
    layers = "a worker holds some of the layers, and the scheduler hears the last worker alone"
    tokens = "a worker holds some of a request's tokens, and a policy ranks them all"
    refused = {
        "micro-batches (--enable-dbo, --ubatch-size): a pass is looked up as one batch": ubatching
    }
    for way, why in (("pipeline", layers), ("decode context", tokens), ("prefill context", tokens)):
        size = getattr(sizes, f"{way.replace(' ', '_')}_parallel_size")
        option = f"--{way.replace(' ', '-')}-parallel-size {size}"
        refused[f"{way} parallelism ({option}): {why}"] = size > 1
    return refused


def check_engine(config: Any, policies: Sequence[Policy]) -> None:
    """Refuse settings that exclude compressed blocks. ``config`` is a ``VllmConfig``.

    Raises:
        UnsupportedEngine: names the setting.
    """
    cache, parallel = config.cache_config, config.parallel_config
    refused = {
        "a KV connector (--kv-transfer-config, --kv-offloading-size) and a budget by KV head, whose "
        "pages have no layer's shape": config.kv_transfer_config is not None and by_head(policies),
        "latent attention (MLA), whose cache holds neither keys nor values": (
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
    _check_boundaries(policies, method, config.scheduler_config, cache.cache_dtype)
    if HERE not in str(config.scheduler_config.scheduler_cls):
        raise UnsupportedEngine(
            "Foveate's worker needs Foveate's scheduler, which tells it which blocks are free. "
            f"Start vLLM with {SCHEDULER} {CLASSES[SCHEDULER]}, or by 'foveate serve'."
        )


def _check(refused: Mapping[str, Any], method: str | None, option: str = "") -> None:
    drafts = f"speculative decoding by {method!r}{option}: {_drafts(method)}"
    refused = {**refused, drafts: method not in (None, *NGRAM)}
    refuse("Foveate's worker cannot be combined with ", refused, f". {_LEAVE}.")


def _check_boundaries(
    policies: Sequence[Policy], method: str | None, images: Any, cache_type: str
) -> None:
    """Refuse settings that exclude policies that compress repeatedly (``when=over_budget``)."""
    refused = {
        "speculative decoding (--speculative-config, --spec-method), whose drafts may be taken "
        "back after a boundary": method is not None,
        "images that are read in one piece (--disable-chunked-mm-input), as boundaries may lie "
        "within them": images.disable_chunked_mm_input,
        "a cache of codes (--kv-cache-dtype)": cache_type != "auto",
    }
    for policy in policies:
        if policy.when.decodes or policy.when.reads:
            refuse(
                f"{policy} compresses again as tokens come, and cannot be combined with ",
                refused,
                ". Leave that out, or choose when=after_prefill.",
            )
