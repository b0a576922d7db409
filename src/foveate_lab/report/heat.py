"""Maps of scores over two labels that are numbers, one map a policy: a needle at a depth of a text
of some length, a page at a place among some pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from foveate.pictures.shown import short, without_folders
from foveate_lab.eval.summary import Rows, score_of
from foveate_lab.report.analyses import SHADES, Figure
from foveate_lab.report.charts import axes, svg
from foveate_lab.report.splits import values_of

ACROSS = 3  # maps beside each other
LETTERS = 75  # of their titles, beside the scale


class Kind(NamedTuple):
    """Two labels, across and down, and what a map of them is called."""

    across: str
    down: str
    title: str
    named: tuple[str, str]
    caption: str


KINDS = (
    Kind(
        "length",
        "depth",
        "Needle in a haystack",
        ("tokens", "depth, %"),
        "Of a needle at that depth of a text of that length; what nobody asked stays empty.",
    ),
    Kind(
        "pages",
        "place",
        "Pages, and the place of the one that is asked for",
        ("pages", "place, % of the way"),
        "Of a page at that place (0: the first, 100: the last) among so many; what nobody asked "
        "stays empty.",
    ),
)


def heat_maps(rows: Rows) -> Iterator[Figure]:
    """For each kind one figure with a map for every policy, if the rows of a task have both of its
    labels, as whole numbers.
    """
    for kind in KINDS:
        maps: dict[str, dict[tuple[str, str], list[float]]] = {}
        for row in rows:
            place = _place(row, kind)
            if place and (score := score_of(row)) is not None:
                maps.setdefault(row["spec"], {}).setdefault(place, []).append(score)
        if maps:
            yield Figure(kind.title, _maps(maps, kind), kind.caption)


def _maps(maps: Mapping[str, Mapping[tuple[str, str], Sequence[float]]], kind: Kind) -> str:
    places = [place for mine in maps.values() for place in mine]
    across, down = (sorted({place[i] for place in places}, key=float) for i in (0, 1))
    columns = min(ACROSS, len(maps))
    figure, grid = axes(rows=-(-len(maps) // columns), columns=columns)
    each = np.atleast_1d(grid).ravel()
    for axis, (spec, mine) in zip(each, maps.items(), strict=False):
        values = [[float(np.mean(mine.get((x, y), [np.nan]))) for x in across] for y in down]
        drawn = _map(axis, values, across, down, kind)
        axis.set_title(short(without_folders(spec), LETTERS // columns), fontsize=7)
    for axis in each[len(maps) :]:
        axis.set_visible(False)
    figure.colorbar(drawn, ax=list(each), label="score")
    return svg(figure)


def _place(row: Any, kind: Kind) -> tuple[str, str] | None:
    """Across and down, where both are numbers."""
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
    axis.set_xlabel(kind.named[0], fontsize=7)
    axis.set_ylabel(kind.named[1], fontsize=7)
    axis.grid(visible=False)
    return drawn
