"""What no other is better than in every way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
