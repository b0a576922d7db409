"""docs/quality.svg: right answers over stored bytes and over compression time, with Pareto fronts.

Colors are readable on light and on dark pages.
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
WIDE, HIGH = 470, 380  # of a panel, labels included
LEFT, TOP, RIGHT, BOTTOM = 48, 34, 12, 46  # margins in a panel, around the axes
LETTER, LINE = 6.2, 13.0  # approximate width of a label's letter, height of its line
SHARES, TIMES = (
    (3.5, 65.0),
    (0.8, 250.0),
)  # percent, from edge to edge; points beyond are drawn at the edge


class Named(NamedTuple):
    """A method's point in a panel: its cost and its right answers, in percent."""

    name: str
    point: Point


class Panel(NamedTuple):
    """A panel's position and title, and its horizontal axis: label, ends and ticks."""

    left: float
    top: float
    title: str
    over: str
    ends: tuple[float, float]
    ticks: Sequence[float]

    def x(self, cost: float) -> float:
        """Return the horizontal position of a cost, on a logarithmic axis."""
        low, high = self.ends
        share = log(min(max(cost, low), high) / low) / log(high / low)
        return self.left + LEFT + share * (WIDE - LEFT - RIGHT)

    def y(self, worth: float) -> float:
        """Return the vertical position of 0 to 100 % right answers, with room for half a dot."""
        return self.top + HIGH - BOTTOM - (worth + 3) / 106 * (HIGH - TOP - BOTTOM)


def picture() -> str:
    """Draw a panel per protocol over bytes, and below it one over time."""
    drawn: list[str] = []
    for column, (protocol, board) in enumerate(boards().items()):
        rows, left = methods(board), column * WIDE
        by_bytes = Panel(left, 0, protocol, "KV bytes held, %", SHARES, (5, 10, 20, 40))
        drawn += _panel(by_bytes, _byte_points(rows), named=False)
        title = f"{protocol}, mean of the budgets"
        over = "time of compressing, % of the prefill's"
        by_time = Panel(left, HIGH, title, over, TIMES, (1, 3, 10, 30, 100))
        drawn += _panel(by_time, _time_points(rows), named=True)
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


def _byte_points(rows: Sequence[Board]) -> list[Named]:
    return [
        Named(short(row["method"]), Point(100 * cell["bytes"], 100 * cell["right"][0]))
        for row in rows
        for cell in row["cells"].values()
    ]


def _time_points(rows: Sequence[Board]) -> list[Named]:
    return [Named(short(row["method"]), Point(100 * row["cost"], 100 * mean(row))) for row in rows]


def _panel(panel: Panel, found: Sequence[Named], *, named: bool) -> Iterator[str]:
    """Draw the axes and every method, the papers above others and the front on top.

    ``named``: label the papers too, not only the front.
    """
    yield from _axes(panel)
    for name, point in sorted(found, key=lambda method: method.name in PAPERS):
        color, radius = (ORANGE, 4) if name in PAPERS else (GREY, 3)
        yield _dot(panel, point, color, radius)
    best = [found[index] for index in front([method.point for method in found])]
    corners = " ".join(f"{panel.x(p.cost):.1f},{panel.y(p.worth):.1f}" for _, p in best)
    yield f'<polyline points="{corners}" fill="none" stroke="{BLUE}" stroke-width="1.5"/>'
    yield from (_dot(panel, point, BLUE, 4.5) for _, point in best)
    papers = [m for m in found if named and m.name in PAPERS and m not in best]
    yield from _labels(panel, [*best, *papers], [method.point for method in found])


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
    """Draw each name where it covers the least of other names and dots.

    Methods at the same point share a label.
    """
    shared: dict[Point, list[str]] = {}
    for name, point in found:
        shared.setdefault(point, []).append(name)
    taken = [_box(panel.x(p.cost), panel.y(p.worth), 7.0, 7.0) for p in dots]
    for point, names in shared.items():
        text = ", ".join(names[:2]) + (f" and {len(names) - 2} more" if names[2:] else "")
        x, y, wide = panel.x(point.cost), panel.y(point.worth), LETTER * len(text)
        spots = [
            (x + across * (wide / 2 + 7), y + down * LINE)
            for across in (-1, 1, 0)  # first to the left: the area above a front is empty
            for down in ((-1, 0, 1, -2, 2, -3, 3) if across else (-1, 1))
        ]
        inside = [spot for spot in spots if _fits(panel, *spot, wide)] or spots
        best = min(inside, key=lambda spot: _covered(_box(*spot, wide, LINE), taken))
        taken.append(_box(*best, wide, LINE))
        color = ORANGE if names[0] in PAPERS else BLUE
        yield (
            f'<text x="{best[0]:.1f}" y="{best[1] + 4:.1f}" text-anchor="middle" fill="{color}">'
            f"{escape(text)}</text>"
        )


class Box(NamedTuple):
    """Edges of a rectangle: left, top, right, bottom."""

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
    """Return the area that a box shares with others."""
    return sum(
        max(0.0, min(box.x1, o.x1) - max(box.x0, o.x0))
        * max(0.0, min(box.y1, o.y1) - max(box.y0, o.y0))
        for o in others
    )
