"""A map of scores over depths and lengths: needle in a haystack, one map a policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from foveate.report.analyses import LETTERS, SHADES, Figure
from foveate.report.charts import axes, svg
from foveate.report.shown import short, without_folders
from foveate.report.splits import values_of
from foveate.report.summary import Rows, score_of

ACROSS = 3  # maps beside each other


def heat_maps(rows: Rows) -> Iterator[Figure]:
    """One figure with a map for every policy, if the rows of a task say how deep a needle lay in
    how long a text.
    """
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for row in rows:
        place = _place(row)
        if place and (score := score_of(row)) is not None:
            found.setdefault(row["spec"], {}).setdefault(place, []).append(score)
    if not found:
        return
    places = [place for mine in found.values() for place in mine]
    lengths, depths = (sorted({place[i] for place in places}, key=float) for i in (0, 1))
    columns = min(ACROSS, len(found))
    figure, grid = axes(rows=-(-len(found) // columns), columns=columns)
    each = np.atleast_1d(grid).ravel()
    for axis, (spec, mine) in zip(each, found.items(), strict=False):
        values = [
            [float(np.mean(mine.get((length, depth), [np.nan]))) for length in lengths]
            for depth in depths
        ]
        drawn = _map(axis, values, lengths, depths)
        axis.set_title(short(without_folders(spec), LETTERS // columns), fontsize=7)
    for axis in each[len(found) :]:
        axis.set_visible(False)
    figure.colorbar(drawn, ax=list(each), label="score")
    caption = "Of a needle at that depth of a text of that length; what nobody asked stays empty."
    yield Figure("Needle in a haystack", svg(figure), caption)


def _place(row: Any) -> tuple[str, str] | None:
    """Length and depth, where both are numbers."""
    length, depth = values_of(row, "length"), values_of(row, "depth")
    if len(length) == len(depth) == 1 and length[0].isdecimal() and depth[0].isdecimal():
        return length[0], depth[0]
    return None


def _map(axis: Any, values: list[list[float]], lengths: list[str], depths: list[str]) -> Any:
    drawn = axis.imshow(values, cmap=SHADES, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    axis.set_xticks(range(len(lengths)), lengths, rotation=90, fontsize=6)
    axis.set_yticks(range(len(depths)), depths, fontsize=6)
    axis.set_xlabel("tokens", fontsize=7)
    axis.set_ylabel("depth, %", fontsize=7)
    axis.grid(visible=False)
    return drawn
