"""What a table is made of once it is laid out: headings, blocks and rows of placed cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from foveate_lab.reproduce.tables.table import Dimension, TableCell, TableLine

Coordinates = Mapping[Dimension, str]


class PlacedCell(NamedTuple):
    """A cell at its place; ``like`` is a printed number of its column, for its digits."""

    at: Coordinates
    line: TableLine
    cell: TableCell
    like: str


class Placed(NamedTuple):
    """What stands in one or several columns of a row, if anything; ``gain`` of a line of gains;
    ``begins`` a group of columns.
    """

    piece: PlacedCell | None
    span: int = 1
    gain: bool = False
    begins: bool = False


class ColumnHeading(NamedTuple):
    """A heading over so many columns."""

    text: str
    span: int


class RowHeading(NamedTuple):
    """A heading between the rows ("llava-1.5-7b, budget 128"), or none ("")."""

    text: str


class LaidRow(NamedTuple):
    """Names, cells, and the lines of the paper's text that its numbers are from."""

    names: tuple[str, ...]
    cells: tuple[Placed, ...]
    source: str


class Laid(NamedTuple):
    """A table with the rows of its heading; ``names`` are those of the first columns."""

    names: tuple[str, ...]
    heads: tuple[tuple[ColumnHeading, ...], ...]
    rows: tuple[RowHeading | LaidRow, ...]

    @property
    def pieces(self) -> Iterator[PlacedCell]:
        """Every cell that was placed, but those of gains, in the order of reading."""
        for row in self.rows:
            if isinstance(row, LaidRow):
                yield from (one.piece for one in row.cells if one.piece and not one.gain)
