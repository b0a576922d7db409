"""Scores of one kind of sample at a time: by every label that a task's samples have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from foveate_lab.eval.summary import Rows, score_of

MOST = 40  # values of a label that a table has a column for


class LabelSplit(NamedTuple):
    """Of one label: its values, how many samples have each, and for every spec the mean score of
    each value, None where nothing scored. The last number is the mean over values, in which each
    weighs the same (MileBench's over sets).
    """

    label: str
    values: list[str]
    counts: list[int]
    scores: dict[str, list[float | None]]


def splits(rows: Rows) -> list[LabelSplit]:
    """The rows of one task by each label of which its samples have several values, but not so many
    that each is alone.
    """
    names = dict.fromkeys(name for row in rows for name in _labels(row))
    labelled = [split(rows, name) for name in names]
    return [one for one in labelled if 1 < len(one.values) <= MOST]


def split(rows: Rows, label: str) -> LabelSplit:
    """The rows of one task by one label; a sample with a list of words counts for each."""
    held: dict[str, dict[str, list[float]]] = {}
    samples: dict[str, set[str]] = {}
    for row in rows:
        mine = held.setdefault(row["spec"], {})
        for value in values_of(row, label):
            samples.setdefault(value, set()).add(row["sample"])
            if (score := score_of(row)) is not None:
                mine.setdefault(value, []).append(score)
    values = sorted(samples, key=_order)
    return LabelSplit(
        label,
        values,
        [len(samples[value]) for value in values],
        {spec: _means([mine.get(value, []) for value in values]) for spec, mine in held.items()},
    )


def values_of(row: Mapping[str, Any], label: str) -> list[str]:
    """What a row's sample is labelled with, as words; none where it is not."""
    value = _labels(row).get(label)
    several = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return list(dict.fromkeys(map(str, several)))


def _labels(row: Mapping[str, Any]) -> Mapping[str, Any]:
    labels = row.get("labels")
    return labels if isinstance(labels, Mapping) else {}


def _means(groups: Sequence[Sequence[float]]) -> list[float | None]:
    """Of each group, and of these means."""
    means = [math.fsum(group) / len(group) if group else None for group in groups]
    there = [mean for mean in means if mean is not None]
    return [*means, math.fsum(there) / len(there) if there else None]


def _order(value: str) -> tuple[float, str]:
    """Numbers by their size, and before words."""
    return (float(value), "") if value.isdecimal() else (math.inf, value)
