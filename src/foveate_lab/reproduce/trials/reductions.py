"""Reductions of a cell's rows to the number that a paper prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median

from foveate_lab.eval.answering.perplexity import perplexity
from foveate_lab.eval.summary import numbers_of
from foveate_lab.reproduce.tables.table import Row

Reduction = Callable[[Sequence[Row]], float | None]


def _average(name: str, times: float = 1) -> Reduction:
    """Return a reduction to the mean of a number, in another unit."""

    def reduced(rows: Sequence[Row]) -> float | None:
        numbers = numbers_of(rows, name)
        return times * mean(numbers) if numbers else None

    return reduced


percent = _average("score", 100.0)


def count(rows: Sequence[Row]) -> float | None:
    """Return how many answers are right."""
    numbers = numbers_of(rows, "score")
    return sum(numbers) if numbers else None


def over_sets(rows: Sequence[Row]) -> float | None:
    """Return the mean over sets of each set's mean, in percent, as MileBench; samples are
    SET/ID.
    """
    sets: dict[str, list[Row]] = {}
    for row in rows:
        sets.setdefault(row["sample"].partition("/")[0], []).append(row)
    percents = [value for each in sets.values() if (value := percent(each)) is not None]
    return mean(percents) if percents else None


def milliseconds(rows: Sequence[Row]) -> float | None:
    """Return the time of a decoded token, the median of the samples."""
    numbers = numbers_of(rows, "decode_s_per_token")
    return 1000 * median(numbers) if numbers else None


REDUCTIONS: dict[str, Reduction] = {
    "score": _average("score"),
    "percent": percent,
    "count": count,
    "over sets": over_sets,
    "PPL": perplexity,
    "ROUGE": _average("rouge_full"),  # ROUGE-L to the answer of the full cache
    "ROUGE of two draws": _average("rouge_draws"),
    "ROUGE of a draw": _average("rouge_greedy"),  # to the greedy answer
    "ms/token": milliseconds,
    "GiB": _average("kv_bytes", 2**-30),  # size of the cache after the prompt
    "decoupled layers": _average("decoupled_layers"),
}
COSTS = ("ms/token", "GiB")  # measured time and memory, which differ between machines
DRAWN = ("ROUGE of two draws", "ROUGE of a draw")  # reductions of rows with drawn answers
