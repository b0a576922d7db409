"""Results in figures: means with intervals, and differences on the same samples."""

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


@dataclass(frozen=True)
class Estimate:
    """A mean of ``count`` samples, and the interval that holds the true one in 95 % of cases."""

    mean: float
    low: float
    high: float
    count: int


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


@dataclass(frozen=True)
class SummaryCell:
    """One policy on one task. ``bytes_share`` is over the full cache's; ``difference`` is to the
    full cache, sample by sample, None where they have none in common; ``score`` is None where
    nothing scored. ``perplexity`` is of the references, None where there are none.

    Means are over the samples that have a finite number, and NaN where none has. Of the samples,
    ``answered`` have an answer and ``failed`` were refused; ``odd`` answers have a divergence or a
    size that is no finite number.
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
    answered: int = 0
    failed: int = 0
    odd: int = 0


class Failure(NamedTuple):
    """What a policy on one task was refused: how often, and what was said the first time."""

    task: str
    spec: str
    times: int
    sample: str
    said: str


def cells(rows: Rows) -> list[SummaryCell]:
    """A cell for every task and spec, in the order in which they first stand in the rows."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["spec"]), []).append(row)
    return [
        _cell(task, spec, mine, groups.get((task, FULL), []))
        for (task, spec), mine in groups.items()
    ]


def _cell(task: str, spec: str, mine: Rows, full: Rows) -> SummaryCell:
    answered = [row for row in mine if "error" not in row]
    scores, scored = _scores(full), _scores(answered)
    paired = [score - scores[sample] for sample, score in scored.items() if sample in scores]
    agreement = numbers_of(answered, "agreement")
    rouge = numbers_of(answered, "rouge_full")
    steps = numbers_of(answered, "decode_s_per_token")
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
        decode_s_per_token=float(np.median(steps)) if steps else None,
        answered=len(answered),
        failed=len(mine) - len(answered),
        odd=sum(map(_is_odd, answered)),
    )


def _is_odd(row: Mapping[str, Any]) -> bool:
    return len(numbers_of([row], "kl", "nll")) < 2 or not bytes_shares([row])


def failures(rows: Rows) -> list[Failure]:
    """What was refused, for every task and spec."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if "error" in row:
            groups.setdefault((row["task"], row["spec"]), []).append(row)
    return [
        Failure(*key, len(mine), mine[0]["sample"], _said(mine[0]["error"]))
        for key, mine in groups.items()
    ]


def _said(error: Any) -> str:
    return f"{error.get('type')}: {error.get('message')}" if isinstance(error, dict) else str(error)


def _scores(rows: Rows) -> dict[str, float]:
    """Of the samples that have a finite one."""
    return {row["sample"]: score for row in rows for score in numbers_of([row], "score")}


def score_of(row: Mapping[str, Any]) -> float | None:
    """A row's score, if it has one that is finite."""
    return next(iter(numbers_of([row], "score")), None)


def numbers_of(rows: Rows, *names: str) -> list[float]:
    """Those of these names that are there and finite."""
    numbers = [row.get(name) for row in rows for name in names]
    return [float(x) for x in numbers if isinstance(x, int | float) and math.isfinite(x)]


def bytes_shares(rows: Rows) -> list[float]:
    """Of the full cache's bytes."""
    sizes = [numbers_of([row], "kv_bytes", "kv_bytes_full") for row in rows]
    return [size[0] / size[1] for size in sizes if len(size) == 2 and size[1] > 0]


def estimate(values: Iterable[float]) -> Estimate:
    """The mean and its interval: Wilson's if all values are 0 or 1, otherwise the bootstrap's.

    Raises:
        MissingPackage: scipy is not installed.
    """
    numbers = np.asarray(list(values), dtype=float)
    if set(numbers) <= {0.0, 1.0}:
        low, high = _wilson(int(numbers.sum()), len(numbers))
        return Estimate(float(numbers.mean()), low, high, len(numbers))
    return _resampled(numbers)


def mean_difference(values: Iterable[float]) -> Estimate:
    """The mean of differences of scores, sample by sample, and its interval: the bootstrap's. All
    alike they leave it nothing to draw; then a share of the samples may differ that is as large as
    Wilson's interval for none of so many, to either side as long as scores are 0 to 1.

    Raises:
        MissingPackage: scipy is not installed.
    """
    numbers = np.asarray(list(values), dtype=float)
    if np.ptp(numbers):
        return _resampled(numbers)
    mean, (_, margin) = float(numbers[0]), _wilson(0, len(numbers))
    low, high = max(mean - margin, min(mean, -1.0)), min(mean + margin, max(mean, 1.0))
    return Estimate(mean, low, high, len(numbers))


def _wilson(ones: int, count: int) -> tuple[float, float]:
    interval = _scipy_stats().binomtest(ones, count).proportion_ci(LEVEL, "wilson")
    return float(interval.low), float(interval.high)


def _resampled(numbers: Values) -> Estimate:
    """By percentiles of the bootstrap, always of the same draws."""
    stats, mean = _scipy_stats(), float(numbers.mean())
    if len(numbers) < 2 or np.ptp(numbers) == 0:
        return Estimate(mean, mean, mean, len(numbers))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tiny samples
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
