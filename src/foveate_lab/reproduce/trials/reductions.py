"""From the rows of a cell to the number that a paper prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, median

from foveate_lab.eval.answering.perplexity import perplexity
from foveate_lab.reproduce.tables.table import Row

Reduction = Callable[[Sequence[Row]], float | None]


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    numbers = [row.get(name) for row in rows]
    return [float(x) for x in numbers if isinstance(x, int | float) and math.isfinite(x)]


def score(rows: Sequence[Row]) -> float | None:
    """The mean score, in its own unit."""
    numbers = _numbers(rows, "score")
    return mean(numbers) if numbers else None


def percent(rows: Sequence[Row]) -> float | None:
    """The mean score times a hundred."""
    average = score(rows)
    return None if average is None else 100 * average


def count(rows: Sequence[Row]) -> float | None:
    """How many answers are right."""
    numbers = _numbers(rows, "score")
    return sum(numbers) if numbers else None


def over_sets(rows: Sequence[Row]) -> float | None:
    """The mean over sets of each set's mean, in percent: MileBench's, whose samples are SET/ID."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row["sample"].partition("/")[0], []).append(row)
    percents = [value for each in sets.values() if (value := percent(each)) is not None]
    return mean(percents) if percents else None


def rouge(rows: Sequence[Row]) -> float | None:
    """ROUGE-L to the answer of the full cache."""
    numbers = _numbers(rows, "rouge_full")
    return mean(numbers) if numbers else None


def milliseconds(rows: Sequence[Row]) -> float | None:
    """Of a decoded token, the median of the samples."""
    numbers = _numbers(rows, "decode_s_per_token")
    return 1000 * median(numbers) if numbers else None


def gib(rows: Sequence[Row]) -> float | None:
    """What the cache holds after the prompt, mean over the samples, in GiB."""
    numbers = _numbers(rows, "kv_bytes")
    return mean(numbers) / 2**30 if numbers else None


def decoupled(rows: Sequence[Row]) -> float | None:
    """Layers in which DAVID ranked vision and text apart, mean over the samples."""
    numbers = _numbers(rows, "decoupled_layers")
    return mean(numbers) if numbers else None


REDUCTIONS: dict[str, Reduction] = {
    "score": score,
    "percent": percent,
    "count": count,
    "over sets": over_sets,
    "PPL": perplexity,
    "ROUGE": rouge,
    "ms/token": milliseconds,
    "GiB": gib,
    "decoupled layers": decoupled,
}
COSTS = ("ms/token", "GiB")  # measured time and memory: others on another machine
