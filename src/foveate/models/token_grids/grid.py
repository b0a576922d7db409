"""Grids of visual tokens in rows and columns, and the part of an image that they cover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Number = int | float
Box = tuple[Number, Number, Number, Number]
"""Left, top, right and bottom, in pixels of the original image."""
Size = tuple[int, int]
"""Width and height, in pixels."""


class Grid(NamedTuple):
    """Visual tokens of an image in rows and columns.

    ``indices`` are their indices in the prompt, row by row from the top left. ``box`` is the area
    that they cover in cells of equal size: smaller than the image if the processor crops, larger if
    it pads. None is the whole image.
    """

    rows: int
    columns: int
    indices: tuple[int, ...]
    box: Box | None = None

    def on(self, size: Size) -> Box:
        """Return the area that the grid covers on an image of that size."""
        return self.box or (0, 0, *size)


class ImageTokens(NamedTuple):
    """Visual tokens of one image.

    There is one grid, or two if the model sees the image as an overview and in tiles. ``indices``
    are the indices of all its tokens in the prompt, in order; tokens outside the grids end lines.
    If ``lines``, there is any number of grids, each over one line of text.
    """

    indices: tuple[int, ...]
    grids: tuple[Grid, ...]
    lines: bool = False

    def on(self, size: Size) -> Box:
        """Return the area on an image of that size that the first view of it covers."""
        return (0, 0, *size) if self.lines else self.grids[0].on(size)

    def under(self, box: Sequence[Number], size: Size) -> tuple[int, ...]:
        """Return the tokens that a box touches, in the prompt's order: see :func:`tokens_in`."""
        return tuple(sorted(index for grid in self.grids for index in tokens_in(grid, box, size)))


def tokens_in(grid: Grid, box: Sequence[Number], size: Size) -> tuple[int, ...]:
    """Return the visual tokens that a box (left, top, right, bottom, in pixels) touches on an image
    of that size (width, height); none if the processor crops the box away.
    """
    left, top, right, bottom = grid.on(size)
    across, down = grid.columns / (right - left), grid.rows / (bottom - top)
    columns = _cells((box[0] - left) * across, (box[2] - left) * across, grid.columns)
    rows = _cells((box[1] - top) * down, (box[3] - top) * down, grid.rows)
    return tuple(grid.indices[row * grid.columns + column] for row in rows for column in columns)


def _cells(start: Number, end: Number, count: int) -> range:
    """Return the cells of length 1 between two points, among ``count``. An overlap below 1e-6 does
    not count, because boxes come from divisions.
    """
    return range(max(0, math.floor(start + 1e-6)), min(count, math.ceil(end - 1e-6)))
