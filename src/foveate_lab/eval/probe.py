"""Cost of an evaluation, measured on its first samples before it starts."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch

from foveate_lab.eval.summary import FULL, Failure, Rows

SAMPLES = 3
"""Samples of each task that a probe answers. The first warms up and is not counted."""


@dataclass(frozen=True)
class ProbedCost:
    """Predicted cost of an evaluation.

    Attributes:
        tokens: tokens of all prompts.
        seconds: time on this machine.
        memory: peak in bytes while the probe ran, weights included.
        on_gpu: True if ``memory`` is that of the GPUs, False for main memory.
    """

    tokens: float
    seconds: float
    memory: int
    on_gpu: bool


def cost_of(rows: Rows, samples: int) -> ProbedCost:
    """Predict the cost of ``samples`` samples of each task from a probe's answered rows."""
    tokens = seconds = 0.0
    for answered in _by_task_and_sample(rows).values():
        counted = list(answered.values())[1:] or list(answered.values())
        tokens += samples * mean(_prompt_tokens(sample) for sample in counted)
        seconds += samples * mean(sum(row["spent_s"] for row in sample) for sample in counted)
    return ProbedCost(tokens, seconds, peak_memory(), torch.cuda.is_available())


def _by_task_and_sample(rows: Rows) -> Mapping[str, dict[str, list[Mapping[str, Any]]]]:
    groups: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(dict)
    for row in rows:
        if "error" not in row:
            groups[row["task"]].setdefault(row["sample"], []).append(row)
    return groups


def _prompt_tokens(rows: Rows) -> int:
    return max(int(row["tokens"]) for row in rows if row["spec"] == FULL)


def unanswered(refused: Sequence[Failure], rows: Rows) -> Failure | None:
    """Return the refusal of a task that answered nothing at all, if there is one."""
    answered = {row["task"] for row in rows if "error" not in row}
    return next((failure for failure in refused if failure.task not in answered), None)


def peak_memory() -> int:
    """Return the peak of the GPUs' allocated memory, or of this process's main memory."""
    if torch.cuda.is_available():
        return sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
    import resource  # not on all systems

    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS alone
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
