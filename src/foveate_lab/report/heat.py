"""Heat maps of scores over two numeric labels, one map per policy.

For example a needle at a depth in a text of some length, or a page at an index among several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from foveate.pictures.escaping import short, without_folders
from foveate_lab.eval.summary import Rows, score_of
from foveate_lab.report.analyses import SHADES, Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.report.splits import values_of

ACROSS = 3  # maps per row
LETTERS = 75  # total letters of titles in one row


class Kind(NamedTuple):
    """Kind of map: its two labels, across and down, its title, axis names and caption."""

    across: str
    down: str
    title: str
    axis_labels: tuple[str, str]
    caption: str


KINDS = (
    Kind(
        "length",
        "depth",
        "Needle in a haystack",
        ("tokens", "depth, %"),
        "A needle at each depth and text length; cells without samples stay empty.",
    ),
    Kind(
        "pages",
        "place",
        "Pages, and the depth of the one in question",
        ("pages", "place, % of the way"),
        "A page at each depth (0: the first, 100: the last) and number of pages; cells without "
        "samples stay empty.",
    ),
)


def heat_maps(rows: Rows) -> Iterator[Figure]:
    """Yield one figure per kind with a map for every policy, if rows have both of its labels.
    Labels must be whole numbers.
    """
    for kind in KINDS:
        maps: dict[str, dict[tuple[str, str], list[float]]] = {}
        for row in rows:
            position = _position(row, kind)
            if position and (score := score_of(row)) is not None:
                maps.setdefault(row["spec"], {}).setdefault(position, []).append(score)
        if maps:
            yield Figure(kind.title, _maps(maps, kind), kind.caption)


def _maps(maps: Mapping[str, Mapping[tuple[str, str], Sequence[float]]], kind: Kind) -> str:
    positions = [position for by_position in maps.values() for position in by_position]
    across, down = (sorted({position[i] for position in positions}, key=float) for i in (0, 1))
    columns = min(ACROSS, len(maps))
    figure, grid = axes(rows=-(-len(maps) // columns), columns=columns)
    panels = np.atleast_1d(grid).ravel()
    for axis, (spec, by_position) in zip(panels, maps.items(), strict=False):
        values = [[float(np.mean(by_position.get((x, y), [np.nan]))) for x in across] for y in down]
        drawn = _map(axis, values, across, down, kind)
        axis.set_title(short(without_folders(spec), LETTERS // columns), fontsize=7)
    for axis in panels[len(maps) :]:
        axis.set_visible(False)
    figure.colorbar(drawn, ax=list(panels), label="score")
    return svg(figure)


def _position(row: Any, kind: Kind) -> tuple[str, str] | None:
    """Return a row's labels across and down, if both are whole numbers."""
    across, down = values_of(row, kind.across), values_of(row, kind.down)
    if len(across) == len(down) == 1 and across[0].isdecimal() and down[0].isdecimal():
        return across[0], down[0]
    return None


def _map(
    axis: Any, values: list[list[float]], across: list[str], down: list[str], kind: Kind
) -> Any:
    drawn = axis.imshow(values, cmap=SHADES, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axis.set_xticks(range(len(across)), across, rotation=90, fontsize=6)
    axis.set_yticks(range(len(down)), down, fontsize=6)
    axis.set_xlabel(kind.axis_labels[0], fontsize=7)
    axis.set_ylabel(kind.axis_labels[1], fontsize=7)
    axis.grid(visible=False)
    return drawn
