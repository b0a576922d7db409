"""Tensor parallelism: a worker holds some of a layer's KV heads, and decides for these alone.

So a policy can be served in parallel if each KV head's tokens follow from that head. Stages that
look across heads would need all workers' numbers in the middle of a layer; they are refused, as are
those that say nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foveate.core.errors import UnsupportedEngine, UnsupportedPolicy
from foveate.core.policy import Policy
from foveate.core.protocols import NoMerge, wrapped
from foveate.papers.csp import CrossSelf, CrossSelfAttention
from foveate.papers.mixkv import MixDiversity
from foveate.stages.merge import MergeNearest
from foveate.stages.score import (
    AfterVision,
    ColumnSums,
    ExpectedAttention,
    KeyDifference,
    KeyNorm,
    MeanAttention,
    Novelty,
    ProxyAttention,
    Recency,
    TextPrior,
    ValueNorm,
    WindowAttention,
)
from foveate.stages.select import NovelFirst, Robust, TopK

HEAD_BY_HEAD = (
    AfterVision, ColumnSums, CrossSelf, CrossSelfAttention, ExpectedAttention, KeyDifference,
    KeyNorm, MeanAttention, MergeNearest, MixDiversity, NoMerge, Novelty, NovelFirst,
    ProxyAttention, Recency, Robust, TextPrior, TopK, ValueNorm, WindowAttention,
)  # fmt: skip
"""Stages that look at one KV head at a time, whatever their parameters but those below."""


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
            "a policy that decides head by head: snapkv, mixkv, csp, h2o, knorm."
        )
    if workers > heads:
        raise UnsupportedEngine(
            f"{workers} workers share {heads} KV heads: their query heads would choose different "
            f"tokens of the same head. Use --tensor-parallel-size {heads} at most."
        )


def _across_heads(policy: Policy) -> Iterator[Any]:
    """The stages of a policy that do not decide head by head."""
    for stage in (*wrapped(policy.score), policy.select, policy.merge):
        filtered = getattr(stage, "similarity_filter", False)  # goes by a mean over heads
        profiled = getattr(stage, "profile", None) is not None  # has a number for every head
        if type(stage) not in HEAD_BY_HEAD or filtered or profiled:
            yield stage
