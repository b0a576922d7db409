"""Tables of tab-separated values in VLMEvalKit's form: one row a question, images in base64."""

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

LONGEST_NUMBER = (
    64  # maximum characters of a cell that is another row's index; longer cells are images
)


def read_table(path: Path, columns: Sequence[str], delimiter: str = "\t") -> list[Record]:
    """Return the rows of a file with a header; cells are texts, empty ones null.

    Raises:
        InvalidInput: the file cannot be read, lacks a column, or a row has too many or too few
            cells.
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
    """Return the number of rows below a table's header.

    Raises:
        InvalidInput: the file cannot be read.
    """
    csv.field_size_limit(2**31 - 1)
    check_file(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return max(0, sum(bool(cells) for cells in csv.reader(file, delimiter=delimiter)) - 1)
    except (OSError, csv.Error, ValueError) as error:
        raise InvalidInput(
            f"{str(path)!r} cannot be read as a table: {reason(error)}. Check that it is complete."
        ) from error


def _row(path: Path, number: int, header: Sequence[str], cells: Sequence[str]) -> Record:
    where = f"{path}, row {number}"
    if len(cells) != len(header):
        raise InvalidInput(
            f"{where}: it has {len(cells)} cells, and the header {len(header)}. Check that "
            "the file is complete."
        )
    cells_by_name = dict(zip(header, cells, strict=True))
    return Record({name: cell or None for name, cell in cells_by_name.items()}, where)


def table_images(records: Sequence[Record]) -> Iterator[Image.Image]:
    """Yield the image of each row, whose cell is base64, or the index of the row that has it.

    Raises:
        InvalidInput: a cell is neither.
    """
    cells = {record.text("index"): record.text("image") for record in records}
    for record in records:
        cell = record.text("image")
        if len(cell) <= LONGEST_NUMBER and cell in cells:
            cell = cells[cell]
        yield decode_base64(cell, f"{record.where}, field 'image'")


def listed(record: Record, name: str) -> Record:
    """Return the record with one field parsed from Python's notation of a list.

    Raises:
        InvalidInput: the field is no Python literal.
    """
    text = record.text(name)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise InvalidInput(
            f"{record.where}: the field {name!r} is {text[:80]!r}; it must be a list."
        ) from error
    return record.also(**{name: list(value) if isinstance(value, list | tuple) else [value]})
