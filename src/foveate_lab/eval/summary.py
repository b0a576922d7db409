"""Summary of results: means with intervals, and differences on the same samples."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from foveate.errors import MissingPackage
from foveate_lab.eval.answering.perplexity import perplexity

Rows = Sequence[Mapping[str, Any]]
Values = npt.NDArray[np.float64]
FULL = "full"
LEVEL, RESAMPLES = 0.95, 2000
SMALL = 20  # samples; with fewer, bootstrap intervals are far too narrow


@dataclass(frozen=True)
class Estimate:
    """Mean of ``count`` samples with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    count: int


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class SummaryCell:
    """Summary of one policy on one task.

    ``bytes_share`` is relative to the full cache. ``difference`` to the full cache is per sample;
    None without common samples. ``score`` is None if nothing was scored. ``perplexity`` is that of
    the references; None without any.

    ``same`` is the share of answers that equal the full cache's, ``kv_bytes`` the mean size of a
    prompt's cache. ``prefill_s`` and ``first_token_s`` (prefill and compression) are medians; None
    where nothing was measured.

    Means are over samples with a finite number; NaN without any. ``answered`` samples have an
    answer, ``failed`` ones were refused; ``odd`` answers have a non-finite divergence or size.
    """

    task: str
    spec: str
    score: Estimate | None
    difference: Estimate | None
    bytes_share: float
    kl: float
    nll: float
    agreement: Estimate
    rouge: float | None
    perplexity: float | None
    compress_s: float
    decode_s_per_token: float | None
    same: float | None = None
    kv_bytes: float | None = None
    prefill_s: float | None = None
    first_token_s: float | None = None
    answered: int = 0
    failed: int = 0
    odd: int = 0


class Failure(NamedTuple):
    """Refusals of one policy on one task: how often, and the first sample with its message."""

    task: str
    spec: str
    times: int
    sample: str
    message: str


def cells(rows: Rows) -> list[SummaryCell]:
    """Return a cell for every task and spec, in order of appearance."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["spec"]), []).append(row)
    return [
        _cell(task, spec, group, groups.get((task, FULL), []))
        for (task, spec), group in groups.items()
    ]


def _cell(task: str, spec: str, group: Rows, full: Rows) -> SummaryCell:
    answered = [row for row in group if "error" not in row]
    scores, scored = _scores(full), _scores(answered)
    paired = [score - scores[sample] for sample, score in scored.items() if sample in scores]
    agreement = numbers_of(answered, "agreement")
    rouge = numbers_of(answered, "rouge_full")
    compared = [row["first_divergence"] is None for row in answered if "first_divergence" in row]
    sizes = numbers_of(answered, "kv_bytes")
    return SummaryCell(
        task=task,
        spec=spec,
        score=estimate(scored.values()) if scored else None,
        difference=mean_difference(paired) if paired else None,
        bytes_share=_mean(bytes_shares(answered)),
        kl=_mean(numbers_of(answered, "kl")),
        nll=_mean(numbers_of(answered, "nll")),
        agreement=estimate(agreement) if agreement else NOTHING,
        rouge=_mean(rouge) if rouge else None,
        perplexity=perplexity(answered),
        compress_s=_mean(numbers_of(answered, "compress_s")),
        decode_s_per_token=_median(numbers_of(answered, "decode_s_per_token")),
        same=_mean(compared) if compared else None,
        kv_bytes=_mean(sizes) if sizes else None,
        prefill_s=_median(numbers_of(answered, "prefill_s")),
        first_token_s=_median(_first_tokens(answered)),
        answered=len(answered),
        failed=len(group) - len(answered),
        odd=sum(map(_is_odd, answered)),
    )


def _first_tokens(rows: Rows) -> list[float]:
    """Return each row's seconds until the first token of a query-aware answer."""
    seconds = [numbers_of([row], "prefill_s", "compress_s") for row in rows]
    return [sum(both) for both in seconds if len(both) == 2]


def _is_odd(row: Mapping[str, Any]) -> bool:
    if row.get("device") == "server":  # which reports neither
        return False
    return len(numbers_of([row], "kl", "nll")) < 2 or not bytes_shares([row])


def failures(rows: Rows) -> list[Failure]:
    """Return the refusals of every task and spec."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "error" in row:
            groups.setdefault((row["task"], row["spec"]), []).append(row)
    return [
        Failure(*key, len(group), group[0]["sample"], _error_text(group[0]["error"]))
        for key, group in groups.items()
    ]


def _error_text(error: Any) -> str:
    return f"{error.get('type')}: {error.get('message')}" if isinstance(error, dict) else str(error)


def _scores(rows: Rows) -> dict[str, float]:
    """Return the finite scores by sample."""
    return {row["sample"]: score for row in rows for score in numbers_of([row], "score")}


def score_of(row: Mapping[str, Any]) -> float | None:
    """Return a row's score if it is finite, else None."""
    return next(iter(numbers_of([row], "score")), None)


def numbers_of(rows: Rows, *names: str) -> list[float]:
    """Return all finite numbers under these names."""
    numbers = [row.get(name) for row in rows for name in names]
    return [float(n) for n in numbers if isinstance(n, int | float) and math.isfinite(n)]


def bytes_shares(rows: Rows) -> list[float]:
    """Return each row's bytes over the full cache's, where both are known."""
    sizes = [numbers_of([row], "kv_bytes", "kv_bytes_full") for row in rows]
    return [size[0] / size[1] for size in sizes if len(size) == 2 and size[1] > 0]


def estimate(values: Iterable[float]) -> Estimate:
    """Return a mean with its interval: Wilson's if all values are 0 or 1, else the bootstrap's, or
    Student's for few samples.

    Raises:
        MissingPackage: scipy is not installed.
    """
    numbers = np.asarray(list(values), dtype=float)
    if set(numbers) <= {0.0, 1.0}:
        low, high = _wilson(int(numbers.sum()), len(numbers))
        return Estimate(float(numbers.mean()), low, high, len(numbers))
    return _resampled(numbers)


def mean_difference(values: Iterable[float]) -> Estimate:
    """Return the mean of per-sample score differences with a bootstrap interval, or Student's for
    few samples.

    If all values are equal, these have no spread. The interval then allows the share of
    samples that could differ by Wilson's interval for none of ``count``, to either side within
    scores 0 to 1.

    Raises:
        MissingPackage: scipy is not installed.
    """
    numbers = np.asarray(list(values), dtype=float)
    if np.ptp(numbers):
        return _resampled(numbers)
    mean, (_, margin) = float(numbers[0]), _wilson(0, len(numbers))
    low, high = max(mean - margin, min(mean, -1.0)), min(mean + margin, max(mean, 1.0))
    return Estimate(mean, low, high, len(numbers))


def _wilson(successes: int, count: int) -> tuple[float, float]:
    interval = _scipy_stats().binomtest(successes, count).proportion_ci(LEVEL, "wilson")
    return float(interval.low), float(interval.high)


def _resampled(numbers: Values) -> Estimate:
    """Estimate by bootstrap percentiles, with a fixed seed; by Student's t for few samples."""
    stats, mean = _scipy_stats(), float(numbers.mean())
    if len(numbers) < 2 or np.ptp(numbers) == 0:
        return Estimate(mean, mean, mean, len(numbers))
    if len(numbers) < SMALL:
        low, high = stats.t.interval(LEVEL, len(numbers) - 1, mean, stats.sem(numbers))
        return Estimate(mean, float(low), float(high), len(numbers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns about tiny samples
        interval = stats.bootstrap(
            (numbers,),
            np.mean,
            confidence_level=LEVEL,
            n_resamples=RESAMPLES,
            method="percentile",
            rng=0,
        ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high), len(numbers))


def _scipy_stats() -> Any:
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingPackage("a report", "scipy", "report") from error
    return stats


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
