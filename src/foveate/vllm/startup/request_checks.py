"""Checks of one request against an engine's connector, scheduler and model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foveate.errors import InvalidParameter
from foveate.vllm.plans.boundaries import Every
from foveate.vllm.plans.plans import Plan


def check_transfer(transfer: Any, plan: Plan, extra_args: Mapping[str, Any]) -> None:
    """Refuse compressed requests whose pairs a KV connector hands to another engine.

    ``transfer`` is vLLM's ``KVTransferConfig``, if there is a connector.
    """
    if transfer is None or plan.policy is None:
        return
    hands_over = transfer.kv_role != "kv_both" or extra_args.get("kv_transfer_params")
    if hands_over:
        raise InvalidParameter(
            f"{transfer.kv_connector} (--kv-transfer-config) hands this request's blocks from one "
            f"engine to another, by the order of tokens, and {plan.policy} stores them in another "
            "order. Choose foveate_policy=full for this request, or a connector with "
            "kv_role=kv_both and no kv_transfer_params."
        )


def check_session(scheduler: Any, plan: Plan, request: Any) -> None:
    """Refuse requests whose prompt goes on after an answer (streamed input) where pairs may already
    be evicted by tokens that vLLM takes back when the answer ends: steps that are scheduled ahead.
    """
    every = plan.policy is not None and Every.of(plan.policy.when).tokens
    if request.resumable and every and scheduler.async_scheduling:
        raise InvalidParameter(
            "this request's prompt goes on after an answer (streamed input), and "
            f"{plan.policy} compresses answers in steps that are scheduled ahead. Start vLLM with "
            "--no-async-scheduling, or choose a policy with when=after_prefill."
        )


def check_bidirectional(plan: Plan, features: Any) -> None:
    """Refuse images that the scores would see in another order than a model whose image tokens
    attend to each other in both directions: scores are causal. Queries after the images see all of
    them.
    """
    if plan.policy is None or not features:
        return
    ends = [each.mm_position.offset + each.mm_position.length for each in features]
    queries = plan.policy.score.queries(plan.length)
    if max(ends) > plan.length:
        why = "compresses a context, and an image is read behind what is kept of it"
    elif plan.policy.running or Every.of(plan.policy.when).tokens:
        why = "scores images while they are read"
    elif queries > plan.length - max(ends):
        why = f"reads the last {min(queries, plan.length)} queries, and the image ends later"
    else:
        return
    raise InvalidParameter(
        f"{plan.policy} {why}; this model's image tokens attend to each other in both directions, "
        "and scores are causal. Put more text behind the image, or choose a policy with a smaller "
        "window or without queries, such as snapkv:window=8 or knorm:budget=20%, or "
        "foveate_policy=full."
    )
