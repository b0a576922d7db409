"""Tables of tab-separated values, as VLMEvalKit holds its benchmarks: one row a question, with the
image in it in base64.
"""

from __future__ import annotations

import ast
import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from foveate.data.images import decode_base64
from foveate.data.records import Record, check_columns
from foveate.data.texts import check_file, read_text, reason
from foveate.errors import InvalidInput

LONGEST_NUMBER = 64  # characters of a cell that names another row's image, rather than being one


def read_table(path: Path, columns: Sequence[str], delimiter: str = "\t") -> list[Record]:
    """The rows of a file with a header; every cell is a text, and an empty one is null.

    Raises:
        InvalidInput: it cannot be read, has not all of the columns, or a row has too many cells or
            too few.
    """
    csv.field_size_limit(2**31 - 1)
    rows = csv.reader(io.StringIO(read_text(path)), delimiter=delimiter)
    try:
        header, *rest = rows
    except (csv.Error, ValueError) as error:
        raise InvalidInput(f"{str(path)!r} cannot be read as a table: {error}.") from error
    check_columns(path, columns, header)
    return [_row(path, number, header, cells) for number, cells in enumerate(rest) if cells]


def count_table(path: Path, delimiter: str = "\t") -> int:
    """How many rows a table has below its header, of which none is kept.

    Raises:
        InvalidInput: it cannot be read.
    """
    csv.field_size_limit(2**31 - 1)
    check_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return max(0, sum(bool(cells) for cells in csv.reader(file, delimiter=delimiter)) - 1)
    except (OSError, csv.Error, ValueError) as error:
        raise InvalidInput(
            f"{str(path)!r} cannot be read as a table: {reason(error)}. Is it whole?"
        ) from error


def _row(path: Path, number: int, header: Sequence[str], cells: Sequence[str]) -> Record:
    where = f"{path}, row {number}"
    if len(cells) != len(header):
        raise InvalidInput(
            f"{where}: it has {len(cells)} cells, and the header {len(header)}. Is it whole?"
        )
    cells_by_name = dict(zip(header, cells, strict=True))
    return Record({name: cell or None for name, cell in cells_by_name.items()}, where)


def table_images(records: Sequence[Record]) -> Iterator[Image.Image]:
    """The image of each row: base64 in its cell, or the index of the row that has it.

    Raises:
        InvalidInput: a cell holds neither.
    """
    cells = {record.text("index"): record.text("image") for record in records}
    for record in records:
        cell = record.text("image")
        if len(cell) <= LONGEST_NUMBER and cell in cells:
            cell = cells[cell]
        yield decode_base64(cell, f"{record.where}, field 'image'")


def listed(record: Record, name: str) -> Record:
    """The record with the list in a cell that holds Python's text of one.

    Raises:
        InvalidInput: it holds no such text.
    """
    text = record.text(name)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise InvalidInput(
            f"{record.where}: the field {name!r} is {text[:80]!r}; it has to be a list."
        ) from error
    return record.also(**{name: list(value) if isinstance(value, list | tuple) else [value]})
