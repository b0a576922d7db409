"""Tensor parallelism: a worker holds some of a layer's KV heads, and decides for these alone.

So a policy can be served in parallel if each KV head's tokens follow from that head, which a stage
says itself (``head_by_head``). Stages that look across heads would need all workers' numbers in the
middle of a layer; they are refused, as are those that say nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foveate.core.policy import Policy
from foveate.core.protocols import is_head_by_head, wrapped
from foveate.errors import UnsupportedEngine, UnsupportedPolicy


def check_parallel(policy: Policy, workers: int, heads: int) -> None:
    """Refuses what cannot be shared out to several workers.

    Args:
        policy: one that ``check_policy`` lets through.
        workers: of tensor parallelism; nothing is refused of one.
        heads: KV heads of a layer, over all workers.

    Raises:
        UnsupportedPolicy: a stage that decides for several heads together.
        UnsupportedEngine: fewer heads than workers, whose query heads then share one.
    """
    if workers == 1:
        return
    for stage in _across_heads(policy):
        raise UnsupportedPolicy(
            f"{policy} cannot be served with tensor parallelism: {stage!r} goes by several KV "
            "heads together, and each worker holds some of them. Use --tensor-parallel-size 1, or "
            "a policy that decides head by head: snapkv, mixkv, csp, h2o, knorm. A stage of your "
            "own says that it does with head_by_head = True."
        )
    if workers > heads:
        raise UnsupportedEngine(
            f"{workers} workers share {heads} KV heads: their query heads would choose different "
            f"tokens of the same head. Use --tensor-parallel-size {heads} at most."
        )


def _across_heads(policy: Policy) -> Iterator[Any]:
    """The stages of a policy that do not say that they decide head by head."""
    stages = (*wrapped(policy.score), policy.select, policy.merge)
    return (stage for stage in stages if not is_head_by_head(stage))
