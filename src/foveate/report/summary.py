"""Results in figures: means with intervals, and differences on the same samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from foveate.core.errors import MissingPackage
from foveate.eval.perplexity import perplexity

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


@dataclass(frozen=True)
class Cell:
    """One policy on one task. ``bytes_share`` is over the full cache's; ``difference`` is to the
    full cache, sample by sample, None where they have none in common; ``score`` is None where
    nothing scored. ``perplexity`` is of the
    references, None where there are none.
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


def cells(rows: Rows) -> list[Cell]:
    """A cell for every task and spec, in the order in which they first stand in the rows."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["task"], row["spec"]), []).append(row)
    return [_cell(task, spec, mine, groups.get((task, FULL), []))
            for (task, spec), mine in groups.items()]  # fmt: skip


def _cell(task: str, spec: str, mine: Rows, full: Rows) -> Cell:
    scores = {row["sample"]: float(row["score"]) for row in full if row["score"] is not None}
    scored = [(row["sample"], float(row["score"])) for row in mine if row["score"] is not None]
    paired = [score - scores[sample] for sample, score in scored if sample in scores]
    rouge = [row["rouge_full"] for row in mine if "rouge_full" in row]
    steps = [row["decode_s_per_token"] for row in mine if row["decode_s_per_token"] is not None]
    return Cell(
        task=task,
        spec=spec,
        score=estimate([score for _, score in scored]) if scored else None,
        difference=mean_difference(paired) if paired else None,
        bytes_share=_mean(mine, lambda row: row["kv_bytes"] / row["kv_bytes_full"]),
        kl=_mean(mine, lambda row: row["kl"]),
        nll=_mean(mine, lambda row: row["nll"]),
        agreement=estimate(row["agreement"] for row in mine),
        rouge=float(np.mean(rouge)) if rouge else None,
        perplexity=perplexity(mine),
        compress_s=_mean(mine, lambda row: row["compress_s"]),
        decode_s_per_token=float(np.median(steps)) if steps else None,
    )


def estimate(values: Iterable[float]) -> Estimate:
    """The mean and its interval: Wilson's if all values are 0 or 1, otherwise the bootstrap's.

    Raises:
        MissingPackage: scipy is not installed.
    """
    found = np.asarray(list(values), dtype=float)
    if set(found) <= {0.0, 1.0}:
        low, high = _wilson(int(found.sum()), len(found))
        return Estimate(float(found.mean()), low, high, len(found))
    return _resampled(found)


def mean_difference(values: Iterable[float]) -> Estimate:
    """The mean of differences of scores, sample by sample, and its interval: the bootstrap's. All
    alike they leave it nothing to draw; then a share of the samples may differ that is as large as
    Wilson's interval for none of so many, to either side as long as scores are 0 to 1.

    Raises:
        MissingPackage: scipy is not installed.
    """
    found = np.asarray(list(values), dtype=float)
    if np.ptp(found):
        return _resampled(found)
    mean, (_, margin) = float(found[0]), _wilson(0, len(found))
    low, high = max(mean - margin, min(mean, -1.0)), min(mean + margin, max(mean, 1.0))
    return Estimate(mean, low, high, len(found))


def _wilson(ones: int, count: int) -> tuple[float, float]:
    interval = _scipy_stats().binomtest(ones, count).proportion_ci(LEVEL, "wilson")
    return float(interval.low), float(interval.high)


def _resampled(found: Values) -> Estimate:
    """By percentiles of the bootstrap, always of the same draws."""
    stats, mean = _scipy_stats(), float(found.mean())
    if len(found) < 2 or np.ptp(found) == 0:
        return Estimate(mean, mean, mean, len(found))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tiny samples
        interval = stats.bootstrap((found,), np.mean, confidence_level=LEVEL, n_resamples=RESAMPLES,
                                   method="percentile", rng=0).confidence_interval  # fmt: skip
    return Estimate(mean, float(interval.low), float(interval.high), len(found))


def _scipy_stats() -> Any:
    try:
        from scipy import stats
    except ImportError as error:
        raise MissingPackage("a report", "scipy", "report") from error
    return stats


def _mean(rows: Rows, of: Callable[[Mapping[str, Any]], float]) -> float:
    return float(np.mean([of(row) for row in rows]))
