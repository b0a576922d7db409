"""What a worker counts, as Prometheus counters beside vLLM's own.

vLLM's statistics cross from the engine's process to the server's in messages with fixed fields, and
none of them is free. What does cross is Prometheus' own way, which vLLM itself uses for several API
servers: with PROMETHEUS_MULTIPROC_DIR set, each process keeps its counters in files of that folder,
and the page /metrics adds them up. An engine inside one process needs nothing of that.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from foveate.vllm.plans.plans import Plan

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
LABELS = ("model_name", "engine")
COUNTERS = {
    "foveate:prompts": "Prompts that were read to their end; again, if one was preempted.",
    "foveate:prompt_tokens": "Tokens of these prompts.",
    "foveate:kept_tokens": "Tokens kept of them, per KV head, on average over compressed layers.",
    "foveate:freed_blocks": "Blocks that compressed prompts gave back to the pool.",
    "foveate:tokens_not_read": "Tokens of prompts that the pool had compressed, so not read.",
    "foveate:compress_seconds": "Time spent on scoring, selecting and moving pairs, in seconds.",
}


class Metrics:
    """The counters of one worker; of several in tensor parallelism, one counts.

    ``cells`` are those (layers, or KV heads of these) of each KV cache group under policies, by its
    number.
    """

    def __init__(self, model: str, engine: int, cells: Mapping[int, int]):
        self._cells = cells
        self._counters = {name: c.labels(model, str(engine)) for name, c in _counters().items()}

    def count(self, completed: Iterable[Plan], seconds: float, not_read: int) -> None:
        """One step: the prompts that it completed, time compressing, and of the requests that began
        in it the tokens that were not read.
        """
        depth = sum(self._cells.values())
        for plan in completed:
            groups = plan.boundaries.items()
            left = sum(boundaries.left * self._cells[group] for group, boundaries in groups)
            self._add("prompts", 1)
            self._add("prompt_tokens", plan.prompt)
            self._add("kept_tokens", plan.prompt - left / depth)
            self._add("freed_blocks", sum(boundaries.freed for _, boundaries in groups))
        self._add("tokens_not_read", not_read)
        self._add("compress_seconds", seconds)

    def _add(self, name: str, amount: int | float) -> None:
        self._counters[f"foveate:{name}"].inc(amount)


@lru_cache(maxsize=1)
def _counters() -> Mapping[str, Any]:
    """One set a process: Prometheus knows each name once."""
    from prometheus_client import Counter

    return {name: Counter(name, text, LABELS) for name, text in COUNTERS.items()}


def seen_at(environ: Mapping[str, str] = os.environ) -> str:
    """Where this process's counters can be read, in words for the log."""
    if environ.get(FOLDER):
        return "metrics at /metrics"
    if multiprocessing.parent_process() is None:
        return "metrics in this process"
    return f"no metrics outside this process, as {FOLDER} is not set"
