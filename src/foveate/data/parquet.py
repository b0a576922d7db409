"""Tables in parquet files, and the images in their cells."""

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

TOGETHER = 16  # rows in memory, with their images


def read_rows(paths: Sequence[Path], columns: Sequence[str]) -> Iterator[Record]:
    """Every row of these columns, file by file.

    Raises:
        InvalidInput: a file that is no parquet, or has not all of the columns.
        MissingPackage: pyarrow is not installed.
    """
    for path in paths:
        with _opened(path) as file:
            for number, row in enumerate(_rows(path, file, columns)):
                yield Record(row, f"{path}, row {number}")


def columns_of(path: Path) -> list[str]:
    """The names of a file's columns; raises as :func:`read_rows` does."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def count_rows(paths: Sequence[Path]) -> int:
    """How many rows files have, which none is read for; raises as :func:`read_rows` does."""
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
    except Exception as error:  # broken files raise whatever their decoders run into
        raise InvalidInput(
            f"{str(path)!r} cannot be read as parquet: {reason(error)}. Is it a pointer to a file "
            "that was not downloaded (Git LFS)?"
        ) from error


def held_image(row: Record, column: str, folder: Folder) -> Image.Image:
    """The image in a cell: the bytes of a file, those in base64, or its path in the folder; or a
    struct {"bytes", "path"}, whose bytes come first.

    Raises:
        InvalidInput: it holds none, or what is no image.
    """
    held, where = row.held[column], f"{row.where}, field {column!r}"
    if isinstance(held, Mapping):
        held = held.get("bytes") or held.get("path")
    if isinstance(held, bytes) and held:
        return decode_image(held, where)
    if isinstance(held, str) and held:
        # A path has a suffix, and base64 has no full stop.
        if "." in held and not held.startswith("data:"):
            return folder.image(Record({column: held}, row.where), column, "{}")
        return decode_base64(held, where)
    raise InvalidInput(
        f"{where} holds no image: it has to be the bytes of one, the same in base64, or a path."
    )
