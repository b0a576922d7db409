"""The front: what nothing else is better than in every way."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from foveate_lab.eval.summary import NOTHING, Estimate, SummaryCell
from foveate_lab.report.front import Point, front, on_front


def dominated(one: Point, other: Point) -> bool:
    return other != one and other.cost <= one.cost and other.worth >= one.worth


def test_the_front_is_all_that_nothing_dominates() -> None:
    r = Random(0)
    for count in (0, 1, 2, 5, 30):
        for _ in range(40):  # of few values, so that many are alike
            points = [Point(r.randint(1, 6), r.randint(1, 6)) for _ in range(count)]
            found = front(points)
            assert sorted(found) == [
                i for i, one in enumerate(points) if not any(dominated(one, o) for o in points)
            ]
            assert [points[i].cost for i in found] == sorted(points[i].cost for i in found)


def test_the_full_cache_and_the_oracle_compete_with_no_policy() -> None:
    def cell(spec: str, share: float, mean: float) -> SummaryCell:
        score = Estimate(mean, mean, mean, 9)
        return SummaryCell("t", spec, score, None, share, 0.0, 0.0, NOTHING, None, None, 0.0, None)

    full, oracle = cell("full", 1.0, 0.9), cell("oracle:budget=5%", 0.05, 0.9)
    good, dear = cell("snapkv:budget=20%", 0.2, 0.8), cell("knorm:budget=50%", 0.5, 0.8)
    best = cell("h2o:budget=50%", 0.5, 0.85)
    cells = [full, oracle, good, dear, best]
    assert on_front(cells) == [good, best]
    unscored = [replace(one, score=None, agreement=one.score) for one in cells]
    assert [one.spec for one in on_front(unscored)] == [good.spec, best.spec]
    assert on_front([replace(good, score=None), replace(dear, bytes_share=float("nan"))]) == []
