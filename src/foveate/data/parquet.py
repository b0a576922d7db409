"""Tables in Parquet files, and the images in their cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from foveate.data.folder import Folder
from foveate.data.images import decode_base64, decode_image
from foveate.data.records import Record, check_columns
from foveate.data.texts import check_file, reason
from foveate.errors import InvalidInput, MissingPackage

TOGETHER = 16  # rows that are in memory at once, with their images


def read_rows(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Record]:
    """Yield the rows of these columns, file by file.

    Raises:
        InvalidInput: a file is no Parquet, or lacks a column.
        MissingPackage: pyarrow is not installed.
    """
    for path in paths:
        with _opened(path) as file:
            for number, row in enumerate(_rows(path, file, columns)):
                yield Record(row, f"{path}, row {number}")


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns; raises as :func:`read_rows` does."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def count_rows(paths: Sequence[Path]) -> int:
    """Return the number of rows without reading them; raises as :func:`read_rows` does."""
    total = 0
    for path in paths:
        with _opened(path) as file:
            total += file.metadata.num_rows
    return total


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingPackage("a benchmark in parquet files", "pyarrow", "parquet") from error
    check_file(path)
    with _parquet(path):
        file = ParquetFile(path)
    with file:
        yield file


def _rows(path: Path, file: Any, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    with _parquet(path):
        check_columns(path, columns, file.schema_arrow.names)
        batches = file.iter_batches(TOGETHER, columns=list(columns))
    rows: list[dict[str, Any]] | None = []
    while rows is not None:
        yield from rows
        with _parquet(path):
            rows = next((batch.to_pylist() for batch in batches), None)


@contextmanager
def _parquet(path: Path) -> Iterator[None]:
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:  # pyarrow raises errors of any type for broken files
        raise InvalidInput(
            f"{str(path)!r} cannot be read as Parquet: {reason(error)}. If it is a Git LFS "
            "pointer, run git lfs pull."
        ) from error


def held_image(row: Record, column: str, folder: Folder) -> Image.Image:
    """Return the image in a cell.

    The cell is the content of a file, the same in base64, its path in the folder, or a struct
    {"bytes", "path"}, whose bytes are preferred.

    Raises:
        InvalidInput: the cell has no image.
    """
    cell, where = row.fields[column], f"{row.where}, field {column!r}"
    if isinstance(cell, Mapping):
        cell = cell.get("bytes") or cell.get("path")
    if isinstance(cell, bytes) and cell:
        return decode_image(cell, where)
    if isinstance(cell, str) and cell:
        # A path has a suffix, and base64 has no full stop.
        if "." in cell and not cell.startswith("data:"):
            return folder.image(Record({column: cell}, row.where), column, "{}")
        return decode_base64(cell, where)
    raise InvalidInput(
        f"{where} has no image: it must be an image file's bytes, the same in base64, or a path."
    )
