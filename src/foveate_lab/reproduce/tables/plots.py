"""The papers' figures of scores and costs, drawn from their tables: lines, or bars."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import FULL_CACHE, Entry, axes, entry, style, svg
from foveate_lab.reproduce.tables.table import Table, TableCell, TableLine

BUDGET = "budget"
OF_PAPER = {"color": "#808080", "marker": "o", "linestyle": ":"}
INCHES = 0.26  # height of a bar, with the room around it


class Plot(NamedTuple):
    """A chart of a table: its ``kind``, with a panel for each of ``columns`` (all, if none is
    named).

    Lines run over ``x``: the budget, or an argument of the specs. With ``together`` each column is
    a line of one panel; otherwise each method is, by its name before a comma if ``x`` is an
    argument. ``caption`` is added below the chart.
    """

    kind: Literal["lines", "bars"]
    columns: tuple[str, ...] = ()
    x: str = BUDGET
    xlabel: str = "budget, % of the prompt"
    ylabel: str = "score"
    together: bool = False
    caption: str = ""


class PlotPoint(NamedTuple):
    """A point of a series: measured, and the paper's."""

    series: str
    x: float
    cell: TableCell


def plot_table(plot: Plot, table: Table) -> Figure:
    """Draw the table as a chart, with hollow marks at the paper's numbers."""
    draw = _bars if plot.kind == "bars" else _lines
    drawn, key = draw(plot, table)
    caption = "The numbers are those of the table beside it."
    if any(_finite(cell.paper) for line in table.lines for cell in line.cells):
        caption += " Hollow marks: the paper's own, where its tables have them."
    return Figure(table.title, drawn, " ".join(filter(None, (plot.caption, caption))), key)


def _lines(plot: Plot, table: Table) -> tuple[str, list[Entry]]:
    names = plot.columns or table.columns
    panels = {"": names} if plot.together else {name: (name,) for name in names}
    each = _panels(len(panels), across=min(2, len(panels)))
    order: dict[str, int] = {}
    for axis, (title, mine) in zip(each, panels.items(), strict=False):
        points = [point for name in mine for point in _points(plot, table, name)]
        for series in dict.fromkeys(point.series for point in points):
            number = order.setdefault(series, len(order))
            _line(axis, [point for point in points if point.series == series], style(number))
        for name in mine:
            _full_cache_line(axis, table, name)
        axis.set(xlabel=plot.xlabel, ylabel=plot.ylabel)
        axis.set_ylim(0, max(1, axis.get_ylim()[1]))
        axis.set_title(title, fontsize=9)
    for axis in each[len(panels) :]:
        axis.set_visible(False)
    key = [entry(name, style(number)) for name, number in order.items()]
    if any(line.spec == "full" for line in table.lines):
        key.append(entry("full cache", FULL_CACHE))
    return svg(each[0].figure), key


def _panels(count: int, across: int) -> Any:
    rows = -(-count // across)
    _, grid = axes(rows, across, height=2.7 * rows + 0.3 if across > 1 else 3.6)
    return np.atleast_1d(grid).ravel()


def _line(axis: Any, points: Sequence[PlotPoint], drawn: dict[str, str]) -> None:
    """Draw the measured points, joined, and the paper's as hollow marks of the same colour."""
    mine = sorted(
        (point.x, point.cell.measured) for point in points if _finite(point.cell.measured)
    )
    if mine:
        axis.plot(*zip(*mine, strict=True), markersize=5, linewidth=1.4, **drawn)
    of_paper = [(point.x, point.cell.paper) for point in points if _finite(point.cell.paper)]
    if of_paper:
        hollow = {**drawn, "linestyle": "", "markerfacecolor": "none"}
        axis.plot(*zip(*of_paper, strict=True), markersize=8, **hollow)


def _full_cache_line(axis: Any, table: Table, name: str) -> None:
    """Draw the full cache's number along all budgets."""
    at = table.columns.index(name)
    for line in table.lines:
        if line.spec == "full" and _finite(line.cells[at].measured):
            axis.axhline(line.cells[at].measured, linewidth=1, **FULL_CACHE)


def _points(plot: Plot, table: Table, name: str) -> Iterator[PlotPoint]:
    at = table.columns.index(name)
    for line in table.lines:
        x = _x_of(plot, line)
        if x is not None:
            method = line.method if plot.x == BUDGET else line.method.partition(", ")[0]
            yield PlotPoint(name if plot.together else method, x, line.cells[at])


def _x_of(plot: Plot, line: TableLine) -> float | None:
    """Return a line's value along x, or None."""
    if plot.x == BUDGET:
        return float(line.budget.removesuffix("%")) if line.budget else None
    match = re.search(rf"\b{plot.x}=([\d.]+)", line.spec)
    return float(match[1]) if match else None


def _bars(plot: Plot, table: Table) -> tuple[str, list[Entry]]:
    """Draw a bar for each line, the first at the top, and a hollow mark at the paper's number."""
    names, lines = plot.columns or table.columns, table.lines
    high = INCHES * len(lines) + 0.8
    _, grid = axes(1, len(names), height=high)
    each = np.atleast_1d(grid).ravel()
    several = len({line.budget for line in lines if line.budget}) > 1
    labels = [f"{line.method} {line.budget if several else ''}".strip() for line in lines]
    rows = list(range(len(lines)))
    for axis, name in zip(each, names, strict=True):
        cells = [line.cells[table.columns.index(name)] for line in lines]
        heights = [cell.measured if _finite(cell.measured) else 0 for cell in cells]
        axis.barh(rows, heights, height=0.7, color=[_colour(line) for line in lines])
        known = [(cell.paper, at) for at, cell in enumerate(cells) if _finite(cell.paper)]
        if known:
            axis.plot(*zip(*known, strict=True), **{**OF_PAPER, "linestyle": ""}, fillstyle="none")
        axis.set_yticks(rows, labels if axis is each[0] else [""] * len(labels), fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel(plot.ylabel if len(names) == 1 else name)
        axis.grid(visible=False, axis="y")
    return svg(each[0].figure), []


def _colour(line: TableLine) -> str:
    """Return grey for the full cache, and a stronger colour for what a paper adds to a base
    method.
    """
    if line.spec == "full":
        return FULL_CACHE["color"]
    return style(1 if line.over else 0)["color"]


def _finite(value: int | float | None) -> bool:
    return value is not None and math.isfinite(value)
