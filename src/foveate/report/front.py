"""What no other is better than in every way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from foveate.report.summary import FULL, SummaryCell


class Point(NamedTuple):
    """What something costs, and what it is worth."""

    cost: float
    worth: float


def front(points: Sequence[Point]) -> list[int]:
    """The places of the Pareto front, from the cheapest to the dearest: those than which no other
    costs less and is worth as much, or costs as little and is worth more. Of points that are alike
    each is part of it.
    """
    found: list[int] = []
    best: float | None = None
    order = sorted(range(len(points)), key=lambda i: (points[i].cost, -points[i].worth))
    for place in order:
        point = points[place]
        same = bool(found) and points[found[-1]] == point
        if best is None or point.worth > best or same:
            found.append(place)
            best = point.worth
    return found


def on_front(cells: Sequence[SummaryCell]) -> list[SummaryCell]:
    """The policies of one task than which no other holds less and answers as well, or holds as
    little and answers better; by score, or where nothing scored by the tokens that are the full
    cache's. The full cache and the oracle compete with none.
    """
    found = [
        cell
        for cell in cells
        if cell.spec != FULL and cell.spec.split(":")[0] != "oracle" and _worth(cell) is not None
    ]
    scored = any(cell.score for cell in found)
    found = [cell for cell in found if cell.score or not scored]
    return [found[i] for i in front([Point(cell.bytes_share, _worth(cell) or 0) for cell in found])]


def _worth(cell: SummaryCell) -> float | None:
    """None where there is nothing to compare."""
    shown = cell.score or cell.agreement
    return None if not shown.count or math.isnan(cell.bytes_share) else shown.mean
