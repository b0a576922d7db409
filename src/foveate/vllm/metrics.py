"""Counters of an engine, as Prometheus counters beside vLLM's own. Workers count prompts, and the
scheduler counts requests that fail.

vLLM's own statistics reach the server's process in messages with fixed fields, which leave no room
for others. So these counters use Prometheus' multiprocess mode, as vLLM does for several API
servers: with PROMETHEUS_MULTIPROC_DIR set, each process keeps its counters in files of that folder,
and the page /metrics adds them up. An engine inside one process needs none of this.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import product
from typing import Any

from foveate.vllm.plans.failures import Reason
from foveate.vllm.plans.plans import FULL, Plan
from foveate.vllm.plans.settings import Settings

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
LABELS = ("model_name", "engine", "policy")
FAILED = "foveate:failed_requests"
COUNTERS = {
    "foveate:prompts": "Prompts that were read to their end; again, if one was preempted.",
    "foveate:prompt_tokens": "Tokens of these prompts.",
    "foveate:kept_tokens": "Tokens kept of them, per KV head, on average over compressed layers.",
    "foveate:freed_blocks": "Blocks that compressed prompts gave back to the pool.",
    "foveate:tokens_not_read": "Tokens of prompts that the pool had compressed, so not read.",
    "foveate:compress_seconds": "Time spent on scoring, selecting and moving pairs, in seconds.",
    FAILED: "Requests that failed after they were taken in, by reason.",
}


class Metrics:
    """Counters of one engine in one of its processes, labelled by the policies that it offers, and
    "full" for uncompressed prompts. Budgets are no labels, because clients choose them freely.

    ``config`` is a ``VllmConfig``. ``cells`` is the number of cells (layers, or their KV heads) of
    each compressed KV cache group, by the group's number; None in a scheduler, which counts no
    prompts.
    """

    def __init__(self, config: Any, settings: Settings, cells: Mapping[int, int] | None = None):
        engine = config.parallel_config.data_parallel_index
        self._engine = config.model_config.served_model_name, str(engine)
        self._policies: dict[int | None, str] = {None: FULL, **dict(enumerate(settings.names))}
        self._cells = cells or {}
        # start all counters at 0, as Prometheus computes rates from a first value
        for name, policy in product(COUNTERS, self._policies):
            for reason in Reason if name == FAILED else (None,):
                self._add(name, policy, 0, *filter(None, [reason]))

    def count(
        self,
        completed: Iterable[Plan],
        seconds: Mapping[int | None, float],
        not_read: Mapping[int | None, int],
    ) -> None:
        """Count one step: its ``completed`` prompts, and by policy the ``seconds`` of compression
        and the tokens that new requests found compressed and did ``not_read``.
        """
        for plan in completed:
            self._add("foveate:prompts", plan.chosen, 1)
            self._add("foveate:prompt_tokens", plan.chosen, plan.prompt)
            self._add("foveate:kept_tokens", plan.chosen, plan.kept(self._cells))
            freed = sum(boundaries.freed for boundaries in plan.boundaries.values())
            self._add("foveate:freed_blocks", plan.chosen, freed)
        for policy, tokens in not_read.items():
            self._add("foveate:tokens_not_read", policy, tokens)
        for policy, spent in seconds.items():
            self._add("foveate:compress_seconds", policy, spent)

    def fail(self, policy: int | None, reason: Reason) -> None:
        """Count a failed request under the policy with that number (None: "full")."""
        self._add(FAILED, policy, 1, reason)

    def _add(self, name: str, policy: int | None, amount: int | float, *reason: Reason) -> None:
        counter = _create_counters()[name]
        counter.labels(*self._engine, self._policies[policy], *reason).inc(amount)


@lru_cache(maxsize=1)
def _create_counters() -> Mapping[str, Any]:
    """Return this process's counters, created once: Prometheus refuses a second with that name."""
    from prometheus_client import Counter

    return {
        name: Counter(name, text, (*LABELS, "reason") if name == FAILED else LABELS)
        for name, text in COUNTERS.items()
    }


def describe_endpoint(environ: Mapping[str, str] = os.environ) -> str:
    """Return a phrase for the log about where this process's counters can be read."""
    if environ.get(FOLDER):
        return "metrics at /metrics"
    if multiprocessing.parent_process() is None:
        return "metrics in this process"
    return f"no metrics outside this process, as {FOLDER} is not set"
