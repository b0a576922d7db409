"""Visual tokens in rows and columns, and the part of an image that lies under them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Number = int | float
Box = tuple[Number, Number, Number, Number]
"""Left, top, right and bottom, in pixels of the image as it was given."""
Size = tuple[int, int]
"""Width and height, in pixels."""


class Grid(NamedTuple):
    """Visual tokens that see an image in rows and columns.

    ``places`` are their indices in the prompt, row by row from the top left. ``box`` is what they
    see, all cells of one size: less than the image where the processor crops, beyond its edges
    where it pads. None is the whole image.
    """

    rows: int
    columns: int
    places: tuple[int, ...]
    box: Box | None = None

    def on(self, size: Size) -> Box:
        """What it sees of an image of that size."""
        return self.box or (0, 0, *size)


class ImageTokens(NamedTuple):
    """The visual tokens of one image, by their indices in the prompt.

    ``grids`` are one, or two where the model sees the image whole and in tiles. ``places`` are all
    of them in the prompt's order; those of no grid end lines.
    """

    places: tuple[int, ...]
    grids: tuple[Grid, ...]

    def under(self, box: Sequence[Number], size: Size) -> tuple[int, ...]:
        """Those that a box touches, in the prompt's order: see :func:`tokens_in`."""
        return tuple(sorted(at for grid in self.grids for at in tokens_in(grid, box, size)))


def tokens_in(grid: Grid, box: Sequence[Number], size: Size) -> tuple[int, ...]:
    """The visual tokens that a box (left, top, right, bottom, in pixels) touches on an image of
    that size (width, height): none where the processor cuts it off.
    """
    left, top, right, bottom = grid.on(size)
    across, down = grid.columns / (right - left), grid.rows / (bottom - top)
    columns = _cells((box[0] - left) * across, (box[2] - left) * across, grid.columns)
    rows = _cells((box[1] - top) * down, (box[3] - top) * down, grid.rows)
    return tuple(grid.places[row * grid.columns + column] for row in rows for column in columns)


def _cells(start: Number, end: Number, count: int) -> range:
    """Of so many cells of length 1 those between two points. A hair's breadth is no touch, as
    boxes come from divisions.
    """
    return range(max(0, math.floor(start + 1e-6)), min(count, math.ceil(end - 1e-6)))
