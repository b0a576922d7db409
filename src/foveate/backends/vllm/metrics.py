"""What a worker counts, as Prometheus counters beside vLLM's own.

vLLM's statistics cross from the engine's process to the server's in messages with fixed fields, and
none of them is free. What does cross is Prometheus' own way, which vLLM itself uses for several API
servers: with PROMETHEUS_MULTIPROC_DIR set, each process keeps its counters in files of that folder,
and the page /metrics adds them up. An engine inside one process needs nothing of that.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from foveate.backends.vllm.gap import Room
from foveate.backends.vllm.plans import Plan, rooms_in

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
LABELS = ("model_name", "engine")
COUNTERS = {
    "foveate:prompts": "Prompts that were read to their end; again, if one was preempted.",
    "foveate:prompt_tokens": "Tokens of these prompts.",
    "foveate:kept_tokens": "Tokens kept of them, per KV head, on average over compressed layers.",
    "foveate:freed_blocks": "Blocks that compressed prompts gave back to the pool.",
    "foveate:compress_seconds": "Time spent on scoring, selecting and moving pairs, in seconds.",
}


class Group(NamedTuple):
    """A KV cache group under policies: what it keeps, and how many cells (layers, or KV heads of
    these) it has.
    """

    rooms: tuple[Room, ...]
    cells: int


class Metrics:
    """The counters of one worker; of several in tensor parallelism, one counts."""

    def __init__(self, model: str, engine: int, groups: Sequence[Group], block: int):
        self._groups = [(rooms_in(group.rooms, block), group.cells) for group in groups]
        self._block = block
        self._counters = {name: c.labels(model, str(engine)) for name, c in _counters().items()}

    def count(self, completed: Iterable[tuple[Plan, int]], seconds: float) -> None:
        """One step: the prompts that it completed, with their lengths, and time compressing."""
        depth = sum(cells for _, cells in self._groups)
        for plan, prompt in completed:
            gaps = [(rooms.gap(plan), cells) for rooms, cells in self._groups]
            freed = sum(gap * cells for gap, cells in gaps) * self._block
            self._add("prompts", 1)
            self._add("prompt_tokens", prompt)
            self._add("kept_tokens", prompt - freed / depth)
            self._add("freed_blocks", sum(gap for gap, _ in gaps))
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
