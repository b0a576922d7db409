"""Pareto front of policies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from foveate_lab.eval.summary import FULL, SummaryCell


class Point(NamedTuple):
    """Cost and worth of something."""

    cost: float
    worth: float


def front(points: Sequence[Point]) -> list[int]:
    """Return the indices of the Pareto front, from lowest to highest cost.

    A point belongs to it unless another costs less and is worth as much, or costs as little and is
    worth more. Equal points all belong to it.
    """
    indices: list[int] = []
    best: float | None = None
    order = sorted(range(len(points)), key=lambda i: (points[i].cost, -points[i].worth))
    for index in order:
        point = points[index]
        same = bool(indices) and points[indices[-1]] == point
        if best is None or point.worth > best or same:
            indices.append(index)
            best = point.worth
    return indices


def on_front(cells: Sequence[SummaryCell]) -> list[SummaryCell]:
    """Return the policies of a task on the Pareto front of score against bytes.

    If nothing was scored, the share of tokens equal to the full cache's replaces the score. The
    full cache and the oracle are excluded.
    """
    front_cells = [
        cell
        for cell in cells
        if cell.spec != FULL and cell.spec.split(":")[0] != "oracle" and _worth(cell) is not None
    ]
    scored = any(cell.score for cell in front_cells)
    front_cells = [cell for cell in front_cells if cell.score or not scored]
    return [
        front_cells[i]
        for i in front([Point(cell.bytes_share, _worth(cell) or 0) for cell in front_cells])
    ]


def _worth(cell: SummaryCell) -> float | None:
    """Return a cell's score or agreement; None if there is nothing to compare."""
    estimate = cell.score or cell.agreement
    return None if not estimate.count or math.isnan(cell.bytes_share) else estimate.mean
