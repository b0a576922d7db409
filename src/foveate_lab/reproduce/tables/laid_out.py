"""Parts of a table that is laid out: headings, blocks and rows of placed cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from foveate_lab.reproduce.tables.table import Dimension, TableCell, TableLine

Coordinates = Mapping[Dimension, str]


class PlacedCell(NamedTuple):
    """A cell with its coordinates; ``like`` is a printed number of its column, for its digits."""

    at: Coordinates
    line: TableLine
    cell: TableCell
    like: str


class Placed(NamedTuple):
    """Content of one or several columns of a row, if any; ``gain``: of a line of gains; ``begins``:
    a group of columns.
    """

    piece: PlacedCell | None
    span: int = 1
    gain: bool = False
    begins: bool = False


class ColumnHeading(NamedTuple):
    """A heading over ``span`` columns."""

    text: str
    span: int


class RowHeading(NamedTuple):
    """A heading between the rows ("llava-1.5-7b, budget 128"), or none ("")."""

    text: str


class LaidRow(NamedTuple):
    """A row: names, cells, and the lines of the paper's text that its numbers are from."""

    names: tuple[str, ...]
    cells: tuple[Placed, ...]
    source: str


class Laid(NamedTuple):
    """A table with its heading rows; ``names`` are the headings of the first columns."""

    names: tuple[str, ...]
    heads: tuple[tuple[ColumnHeading, ...], ...]
    rows: tuple[RowHeading | LaidRow, ...]

    @property
    def pieces(self) -> Iterator[PlacedCell]:
        """Placed cells in reading order, without those of gains."""
        for row in self.rows:
            if isinstance(row, LaidRow):
                yield from (cell.piece for cell in row.cells if cell.piece and not cell.gain)
