"""docs/quality.svg: right answers against the bytes held, and against the time of compressing, with
the Pareto front of each. Every colour can be read on light pages and on dark ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log
from typing import NamedTuple

from leaderboard import Board, boards, mean, methods, short

from foveate.pictures.strips import PALETTE
from foveate_lab.report.front import Point, front

BLUE, ORANGE, GREY = PALETTE[0], PALETTE[1], "#808080"
PAPERS = ("mixkv", "prefixkv", "csp", "david", "lookm")
WIDE, HIGH = 470, 380  # of a panel, with what is written around it
LEFT, TOP, RIGHT, BOTTOM = 48, 34, 12, 46  # of that, around what is drawn
LETTER, LINE = 6.2, 13.0  # a label's letter and line, about
SHARES, TIMES = (3.5, 65.0), (0.8, 250.0)  # percent, from edge to edge; what is beyond stands there


class Named(NamedTuple):
    """A method's place in a panel: what it costs and what it is worth, in percent."""

    name: str
    point: Point


class Panel(NamedTuple):
    """Where a panel stands, its title, what it is drawn over, and that axis: its ends and ticks."""

    left: float
    top: float
    title: str
    over: str
    ends: tuple[float, float]
    ticks: Sequence[float]

    def x(self, cost: float) -> float:
        """Logarithmic."""
        low, high = self.ends
        share = log(min(max(cost, low), high) / low) / log(high / low)
        return self.left + LEFT + share * (WIDE - LEFT - RIGHT)

    def y(self, worth: float) -> float:
        """From 0 to 100, with room for half a dot."""
        return self.top + HIGH - BOTTOM - (worth + 3) / 106 * (HIGH - TOP - BOTTOM)


def picture() -> str:
    """Two rows, by bytes and by time, of a panel for each protocol."""
    drawn: list[str] = []
    for column, (protocol, board) in enumerate(boards().items()):
        rows, left = methods(board), column * WIDE
        by_bytes = Panel(left, 0, protocol, "KV bytes held, %", SHARES, (5, 10, 20, 40))
        drawn += _panel(by_bytes, _held(rows), named=False)
        title = f"{protocol}, mean of the budgets"
        over = "time of compressing, % of the prefill's"
        by_time = Panel(left, HIGH, title, over, TIMES, (1, 3, 10, 30, 100))
        drawn += _panel(by_time, _taken(rows), named=True)
    size = f"{len(boards()) * WIDE} {2 * HIGH}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" '
            f'font-family="sans-serif" font-size="11" fill="{GREY}">',
            "<title>Right answers against bytes held and against time taken</title>",
            *drawn,
            "</svg>",
        ]
    )


def _held(rows: Sequence[Board]) -> list[Named]:
    return [
        Named(short(row["method"]), Point(100 * cell["bytes"], 100 * cell["right"][0]))
        for row in rows
        for cell in row["cells"].values()
    ]


def _taken(rows: Sequence[Board]) -> list[Named]:
    return [Named(short(row["method"]), Point(100 * row["cost"], 100 * mean(row))) for row in rows]


def _panel(panel: Panel, found: Sequence[Named], *, named: bool) -> Iterator[str]:
    """The axes, every method, the papers above the others and the front above all; ``named``: the
    papers' names too.
    """
    yield from _axes(panel)
    for name, point in sorted(found, key=lambda one: one.name in PAPERS):
        color, radius = (ORANGE, 4) if name in PAPERS else (GREY, 3)
        yield _dot(panel, point, color, radius)
    best = [found[place] for place in front([one.point for one in found])]
    corners = " ".join(f"{panel.x(p.cost):.1f},{panel.y(p.worth):.1f}" for _, p in best)
    yield f'<polyline points="{corners}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>'
    yield from (_dot(panel, point, BLUE, 4.5) for _, point in best)
    papers = [one for one in found if named and one.name in PAPERS and one not in best]
    yield from _labels(panel, [*best, *papers], [one.point for one in found])


def _axes(panel: Panel) -> Iterator[str]:
    left, right = panel.left + LEFT, panel.left + WIDE - RIGHT
    bottom = panel.top + HIGH - BOTTOM
    for worth in range(0, 101, 20):
        y = panel.y(worth)
        yield f'<path d="M{left} {y:.1f}H{right}" stroke="{GREY}" stroke-opacity="0.3"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{worth}</text>'
    for cost in panel.ticks:
        x = panel.x(cost)
        yield f'<path d="M{x:.1f} {bottom}v4" stroke="{GREY}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{cost:g}</text>'
    middle = (left + right) / 2
    yield f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">{panel.over}</text>'
    yield f'<text x="{left}" y="{panel.top + 20}" font-size="13">{panel.title}: right, %</text>'


def _dot(panel: Panel, point: Point, color: str, radius: float) -> str:
    x, y = panel.x(point.cost), panel.y(point.worth)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{color}" fill-opacity="0.85"/>'


def _labels(panel: Panel, found: Sequence[Named], dots: Sequence[Point]) -> Iterator[str]:
    """A name at each place, where it covers the least of other names and dots; those that share a
    place stand together.
    """
    shared: dict[Point, list[str]] = {}
    for name, point in found:
        shared.setdefault(point, []).append(name)
    taken = [_box(panel.x(p.cost), panel.y(p.worth), 7.0, 7.0) for p in dots]
    for point, names in shared.items():
        text = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if names[2:] else "")
        x, y, wide = panel.x(point.cost), panel.y(point.worth), LETTER * len(text)
        places = [
            (x + across * (wide / 2 + 7), y + down * LINE)
            for across in (-1, 1, 0)  # above and left of a front there is nothing
            for down in ((-1, 0, 1, -2, 2, -3, 3) if across else (-1, 1))
        ]
        inside = [place for place in places if _fits(panel, *place, wide)] or places
        best = min(inside, key=lambda place: _covered(_box(*place, wide, LINE), taken))
        taken.append(_box(*best, wide, LINE))
        color = ORANGE if names[0] in PAPERS else BLUE
        yield (
            f'<text x="{best[0]:.1f}" y="{best[1] + 4:.1f}" text-anchor="middle" fill="{color}">'
            f"{escape(text)}</text>"
        )


class Box(NamedTuple):
    """Left, top, right, bottom."""

    x0: float
    y0: float
    x1: float
    y1: float


def _box(x: float, y: float, wide: float, high: float) -> Box:
    return Box(x - wide / 2, y - high / 2, x + wide / 2, y + high / 2)


def _fits(panel: Panel, x: float, y: float, wide: float) -> bool:
    inside = panel.left + LEFT < x - wide / 2 and x + wide / 2 < panel.left + WIDE
    return inside and panel.top + TOP - LINE < y < panel.top + HIGH - BOTTOM - LINE / 2


def _covered(box: Box, others: Sequence[Box]) -> float:
    """The area that the box has in common with others."""
    return sum(
        max(0.0, min(box.x1, o.x1) - max(box.x0, o.x0))
        * max(0.0, min(box.y1, o.y1) - max(box.y0, o.y0))
        for o in others
    )
