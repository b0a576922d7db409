"""Scores split by the values of every label of a task's samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foveate_lab.eval.summary import Rows, score_of

MOST = 40  # maximum number of values of a label in a table


class LabelSplit(NamedTuple):
    """Scores split by one label.

    Its values, the number of samples of each, and for every spec the mean score of each value; None
    if nothing was scored. The last score is the mean over values with equal weights, as MileBench
    averages over sets.
    """

    label: str
    values: list[str]
    counts: list[int]
    scores: dict[str, list[float | None]]


def splits(rows: Rows) -> list[LabelSplit]:
    """Split one task's rows by each label with several values, at most ``MOST``."""
    names = dict.fromkeys(name for row in rows for name in _labels(row))
    labelled = [split(rows, name) for name in names]
    return [label_split for label_split in labelled if 1 < len(label_split.values) <= MOST]


def split(rows: Rows, label: str) -> LabelSplit:
    """Split one task's rows by one label; a sample whose label is a list counts for each value."""
    groups: dict[str, dict[str, list[float]]] = {}
    samples: dict[str, set[str]] = {}
    for row in rows:
        by_value = groups.setdefault(row["spec"], {})
        for value in values_of(row, label):
            samples.setdefault(value, set()).add(row["sample"])
            if (score := score_of(row)) is not None:
                by_value.setdefault(value, []).append(score)
    values = sorted(samples, key=_order)
    return LabelSplit(
        label,
        values,
        [len(samples[value]) for value in values],
        {spec: _means([g.get(value, []) for value in values]) for spec, g in groups.items()},
    )


def values_of(row: Mapping[str, Any], label: str) -> list[str]:
    """Return the values of a label in a row as text; empty if it has none."""
    value = _labels(row).get(label)
    items = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return list(dict.fromkeys(map(str, items)))


def _labels(row: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = row.get("labels")
    return labels if isinstance(labels, Mapping) else {}


def _means(groups: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the mean of each group, then the mean of these means."""
    means = [math.fsum(group) / len(group) if group else None for group in groups]
    known = [mean for mean in means if mean is not None]
    return [*means, math.fsum(known) / len(known) if known else None]


def _order(value: str) -> tuple[float, str]:
    """Return a sort key: numbers by size, before text."""
    return (float(value), "") if value.isdecimal() else (math.inf, value)
