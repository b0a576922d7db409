"""Charts as SVG text, to stand inside a page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from foveate.core.errors import MissingPackage
from foveate.eval.contenders import named
from foveate.report.summary import FULL, Cell

MARKERS = "osD^vP*X<>hp"
COLOURS = 10  # then they come again
TICKS = (1, 2, 3, 5, 7, 10, 15, 20, 33, 50, 70, 100)
WIDTH = 7.2  # inches


def against_bytes(cells: Sequence[Cell], what: str) -> str:
    """Score, or where nothing scored the tokens that are the full cache's, against the bytes held,
    both in percent: a line for each method, bars for intervals.
    """
    figure, axis = axes()
    top = 1.0
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.spec != FULL:
            lines.setdefault(named(cell.spec).method, []).append(cell)
    for place, (name, mine) in enumerate(lines.items()):
        mine = sorted(mine, key=lambda cell: cell.bytes_share)
        shown = [cell.score or cell.agreement for cell in mine]
        x, y = [100 * c.bytes_share for c in mine], [100 * e.mean for e in shown]
        below = [100 * (e.mean - e.low) for e in shown]
        above = [100 * (e.high - e.mean) for e in shown]
        top = max(top, *(e.high for e in shown))
        axis.errorbar(x, y, yerr=(below, above), label=short(name), capsize=2, linewidth=1.4,
                      linestyle="-" if place < COLOURS else ":",
                      marker=MARKERS[place % len(MARKERS)], markersize=5)  # fmt: skip
    for cell in cells:
        if cell.spec == FULL:
            whole = (cell.score or cell.agreement).mean
            top = max(top, whole)
            axis.axhline(100 * whole, color="0.5", linewidth=1, linestyle="--",
                         label="full cache")  # fmt: skip
    axis.set(xscale="log", xlabel="KV bytes held, % of the full cache", ylabel=f"{what}, %",
             ylim=(0, 103 * top))  # fmt: skip
    shares = [100 * cell.bytes_share for cell in cells if cell.spec != FULL]
    axis.set_xlim(0.9 * min(shares, default=1), 1.1 * max(shares, default=100))
    axis.set_xticks([x for x in TICKS if axis.get_xlim()[0] <= x <= axis.get_xlim()[1]])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.tick_params(which="minor", bottom=False, labelbottom=False)
    _name_below(figure, [*map(short, lines), "full cache"])
    return svg(figure)


def short(name: str) -> str:
    """A policy whose files are named without their folders."""
    return re.sub(r"[^=,(]*/", "", name)


def _name_below(figure: Any, names: Sequence[str]) -> None:
    """The legend in as many columns as fit; the figure grows by its rows, the axes keep theirs."""
    columns = max(1, min(4, int(WIDTH / (0.55 + 0.062 * max(map(len, names))))))
    rows = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + 0.17 * max(0, rows - 3))
    figure.legend(frameon=False, fontsize=8, ncols=columns, loc="outside lower center")


def axes(rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    """A figure, and its axes: one, or an array of them.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackage("a report", "matplotlib", "report") from error
    height = 4.2 if rows == columns == 1 else WIDTH / columns * rows + 0.3
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, columns)
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25, linewidth=0.6)
    return figure, grid


def svg(figure: Any) -> str:
    """The figure without the heading that a file of its own would have; text stays text."""
    import matplotlib

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "foveate"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    return out.getvalue()[out.getvalue().index("<svg") :]
