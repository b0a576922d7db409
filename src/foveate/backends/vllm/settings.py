"""Which policy to serve with, and what of vLLM's configuration it cannot be combined with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foveate.backends.vllm.gap import Room
from foveate.backends.vllm.tiers import tiers_from
from foveate.core.composition import policy as policy_of
from foveate.core.policy import Policy
from foveate.core.protocols import Foreseeable, wrapped
from foveate.errors import InvalidParameter, UnsupportedEngine, UnsupportedPolicy, suggest
from foveate.methods.adakv import AcrossHeads
from foveate.stages.budget import HeadTable, Uniform
from foveate.stages.select import KeepsRecent

VARIABLE = "FOVEATE_POLICY"
_EXAMPLE = '--additional-config \'{"foveate": {"policy": "snapkv:budget=20%"}}\''


class Settings(NamedTuple):
    """The policy to serve with, and how many tiers layers with different budgets may form."""

    policy: Policy
    tiers: int


def settings_from(additional_config: Any, environ: Mapping[str, str] = os.environ) -> Settings:
    """What stands under "foveate" in vLLM's additional configuration: the "policy", which may also
    come from the environment variable FOVEATE_POLICY, and "tiers" (8).

    Raises:
        InvalidParameter: no policy, an unusable number, or something else beside them.
        UnsupportedPolicy: it cannot be served; see ``check_policy``.
        InvalidSpec, UnknownMethod, InvalidBudget: it does not parse.
    """
    ours = additional_config.get("foveate") if isinstance(additional_config, Mapping) else None
    if ours is not None and not isinstance(ours, Mapping):
        raise InvalidParameter(f"foveate={ours!r} in the additional configuration: {_EXAMPLE}")
    for name in ours or ():
        if name not in Settings._fields:
            raise InvalidParameter(
                f"the additional configuration of foveate has no {name!r}. "
                f"{suggest(str(name), Settings._fields)}"
            )
    given = ours or {}
    spec = given.get("policy", environ.get(VARIABLE))
    if not isinstance(spec, str) or not spec.strip():
        raise InvalidParameter(
            f"Foveate's worker was started without a policy (found {spec!r}). Give one: "
            f"{_EXAMPLE}, or set {VARIABLE}."
        )
    policy = policy_of(spec)
    check_policy(policy)
    return Settings(policy, tiers_from(given))


def check_policy(policy: Policy) -> None:
    """Refuses policies that cannot be carried out in vLLM's blocks.

    The scheduler frees blocks before it knows any score, so the kept count must follow from the
    prompt's length alone, the same for all KV heads of a layer.

    Raises:
        UnsupportedPolicy: another one; the message says which stage stands in the way.
        InvalidBudget: a budget in bytes.
    """
    budget, select = policy.budget, policy.select
    if isinstance(budget, (AcrossHeads, HeadTable)):
        raise _refused(
            policy,
            f"its budget {budget!r} gives the heads of a layer different "
            "numbers of tokens; head budgets are not supported here",
        )
    if isinstance(budget, Foreseeable) and not budget.foreseeable:
        raise _refused(
            policy,
            f"its budget {budget!r} is found from each prompt's scores; give it "
            "profile=FILE, which 'foveate calibrate' makes",
        )
    if not isinstance(budget, (Uniform, Foreseeable)):
        raise _refused(
            policy,
            f"its budget {budget!r} depends on more than the prompt's length. "
            "Use uniform, pyramid, or prefix_budget with a profile",
        )
    if policy.when.decodes or policy.when.reads:
        raise _refused(
            policy,
            f"{policy.when!r} evicts at other times than the prompt's end. Use when=after_prefill",
        )
    if policy.attend.n:
        raise _refused(policy, f"{policy.attend!r} changes the model's softmax. Leave it out")
    if not policy.store.exact:
        raise _refused(policy, f"{policy.store!r} holds pairs in codes. Use store=full_precision")
    if not isinstance(select, KeepsRecent) or getattr(select, "protect_text", False):
        raise _refused(
            policy, f"what {select!r} always keeps depends on more than the prompt's length"
        )
    Room.of(policy.amount, select.protects)


def check_profiles(policy: Policy, model: str, depth: int) -> None:
    """Raises ProfileMismatch if a stage was calibrated on another model than the one that was
    loaded from ``model``, or on another number of compressed layers.
    """
    for stage in (*wrapped(policy.score), policy.budget):
        profile = getattr(stage, "calibrated", None)
        if profile is not None:
            profile.check_model(model.rstrip("/").split("/")[-1])
            profile.check_layers(depth)


def _refused(policy: Policy, why: str) -> UnsupportedPolicy:
    return UnsupportedPolicy(f"{policy} cannot be served by vLLM: {why}.")


def check_engine(config: Any) -> None:
    """Refuses what compressed blocks cannot be combined with. ``config`` is a ``VllmConfig``.

    Prefix caching needs no refusal: compressed groups take no part in it.

    Raises:
        UnsupportedEngine: the message names the setting.
    """
    parallel = config.parallel_config
    refused = {
        "a KV connector (--kv-transfer-config)": config.kv_transfer_config is not None,
        "speculative decoding (--speculative-config)": config.speculative_config is not None,
        "pipeline parallelism": parallel.pipeline_parallel_size > 1,
        "decode context parallelism": parallel.decode_context_parallel_size > 1,
        "prefill context parallelism": parallel.prefill_context_parallel_size > 1,
        "micro-batches (--enable-dbo, --ubatch-size)": parallel.use_ubatching,
        "latent attention (MLA)": config.model_config.use_mla,
        "a quantised KV cache (--kv-cache-dtype)": config.cache_config.cache_dtype != "auto",
        "model runner V2 (set VLLM_USE_V2_MODEL_RUNNER=0)": config.use_v2_model_runner,
        "asynchronous scheduling (--no-async-scheduling turns it off)": bool(
            config.scheduler_config.async_scheduling
        ),
    }
    for what, found in refused.items():
        if found:
            raise UnsupportedEngine(f"Foveate's worker cannot be combined with {what}.")


def check_layers(
    *,
    compressed: Sequence[str],
    others: Sequence[str],
    sharing: Sequence[str],
    prefix_caching: bool,
    tiers: bool,
    hybrid: bool = True,
) -> None:
    """Refuses models whose layers cannot be compressed beside each other.

    Args:
        compressed: names of the layers of full attention.
        others: names of those that have another kind of cache (windows, states) and keep it.
        sharing: names of those that read another layer's cache.
        prefix_caching: whether the others would share blocks between prompts.
        tiers: whether the policy gives layers different budgets.
        hybrid: whether vLLM may manage caches of several kinds, or has to make them one.

    Raises:
        UnsupportedEngine: no layer to compress; layers that share caches; prefix caching beside
            other layers, whose hits would skip tokens that the compressed layers have to read;
            caches of several kinds that vLLM is told to make one; or different budgets beside
            other layers, as all groups of layers would shrink to the size of the smallest, or
            beside prefix caching, which vLLM cannot switch off for all groups.
    """
    if not compressed:
        raise UnsupportedEngine(
            "no layer of this model holds every token of a prompt, so there is nothing to compress."
        )
    if sharing:
        raise UnsupportedEngine(
            f"the layers {', '.join(sharing)} read the cache of an earlier layer, which would be "
            "compressed before they have read it."
        )
    if others and tiers:
        raise UnsupportedEngine(
            f"this model has {len(others)} layers with windows or states beside those to compress, "
            "and a budget that differs by layer. Use one that keeps the same number in all layers."
        )
    if (others or tiers) and not hybrid:
        raise UnsupportedEngine(
            "the layers of this model, or the budget, make KV cache groups of several kinds, and "
            "vLLM is told to make one of them. Start it without --disable-hybrid-kv-cache-manager."
        )
    if others and prefix_caching:
        raise UnsupportedEngine(
            f"this model has {len(others)} layers with windows or states beside those to compress, "
            "and prefix caching would skip tokens that only the former remember. Start vLLM with "
            "--no-enable-prefix-caching."
        )
    if tiers and prefix_caching:
        raise UnsupportedEngine(
            "a budget that differs by layer makes several KV cache groups, and vLLM's prefix "
            "caching asks for one that it can share. Start vLLM with "
            "--no-enable-prefix-caching, or use a budget that keeps the same number in all layers."
        )
