"""What no other is better than in every way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from foveate_lab.eval.summary import FULL, SummaryCell


class Point(NamedTuple):
    """What something costs, and what it is worth."""

    cost: float
    worth: float


def front(points: Sequence[Point]) -> list[int]:
    """The places of the Pareto front, from the cheapest to the dearest: those than which no other
    costs less and is worth as much, or costs as little and is worth more. Of points that are alike
    each is part of it.
    """
    indices: list[int] = []
    best: float | None = None
    order = sorted(range(len(points)), key=lambda i: (points[i].cost, -points[i].worth))
    for place in order:
        point = points[place]
        same = bool(indices) and points[indices[-1]] == point
        if best is None or point.worth > best or same:
            indices.append(place)
            best = point.worth
    return indices


def on_front(cells: Sequence[SummaryCell]) -> list[SummaryCell]:
    """The policies of one task than which no other holds less and answers as well, or holds as
    little and answers better; by score, or where nothing scored by the tokens that are the full
    cache's. The full cache and the oracle compete with none.
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
    """None where there is nothing to compare."""
    shown = cell.score or cell.agreement
    return None if not shown.count or math.isnan(cell.bytes_share) else shown.mean
