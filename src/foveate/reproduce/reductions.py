"""From the rows of a cell to the number that a paper prints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, median

from foveate.eval.perplexity import perplexity
from foveate.reproduce.table import Row

Reduction = Callable[[Sequence[Row]], float | None]


def _numbers(rows: Sequence[Row], name: str) -> list[float]:
    found = [row.get(name) for row in rows]
    return [float(x) for x in found if isinstance(x, int | float) and math.isfinite(x)]


def score(rows: Sequence[Row]) -> float | None:
    """The mean score, in its own unit."""
    found = _numbers(rows, "score")
    return mean(found) if found else None


def percent(rows: Sequence[Row]) -> float | None:
    """The mean score times a hundred."""
    found = score(rows)
    return None if found is None else 100 * found


def count(rows: Sequence[Row]) -> float | None:
    """How many answers are right."""
    found = _numbers(rows, "score")
    return sum(found) if found else None


def over_sets(rows: Sequence[Row]) -> float | None:
    """The mean over sets of each set's mean, in percent: MileBench's, whose samples are SET/ID."""
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row["sample"].partition("/")[0], []).append(row)
    found = [value for each in sets.values() if (value := percent(each)) is not None]
    return mean(found) if found else None


def rouge(rows: Sequence[Row]) -> float | None:
    """ROUGE-L to the answer of the full cache."""
    found = _numbers(rows, "rouge_full")
    return mean(found) if found else None


def milliseconds(rows: Sequence[Row]) -> float | None:
    """Of a decoded token, the median of the samples."""
    found = _numbers(rows, "decode_s_per_token")
    return 1000 * median(found) if found else None


def gib(rows: Sequence[Row]) -> float | None:
    """What the cache holds after the prompt, mean over the samples, in GiB."""
    found = _numbers(rows, "kv_bytes")
    return mean(found) / 2**30 if found else None


def decoupled(rows: Sequence[Row]) -> float | None:
    """Layers in which DAVID ranked vision and text apart, mean over the samples."""
    found = _numbers(rows, "decoupled_layers")
    return mean(found) if found else None


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
