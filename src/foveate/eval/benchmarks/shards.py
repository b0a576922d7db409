"""A benchmark as data-set repositories on the Hugging Face hub hold it: parquet files, in shards,
with the images inside.

A folder is a copy of the repository, or holds the shards alone. What is in it decides whether it is
read so, or as the benchmark's authors release it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from foveate.core.errors import InvalidInput, MissingPackage

Row = dict[str, Any]
TOGETHER = 16  # rows in memory, with their images


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where on the hub a benchmark is: a repository, the folder ``inside`` it that has the shards,
    and the split that is asked. ``columns`` are read, and ``lists``, columns of lists; ``image`` is
    the one with the images. ``released`` are patterns of the files of the authors' release.
    """

    repository: str
    split: str
    columns: tuple[str, ...]
    released: tuple[str, ...]
    lists: tuple[str, ...] = ()
    inside: str = "data"
    image: str = "image"

    @property
    def holds(self) -> str:
        """What has to be in a folder, in words."""
        return f"{self.split}-*.parquet of {self.repository}"

    def rows(self, folder: Path) -> Iterator[Row] | None:
        """The rows of the split in their order, with images in RGB; None for a folder that is to be
        read as the authors release it.

        Raises:
            InvalidInput: a folder that holds both, or neither; a shard that is missing or cannot be
                read; a column or an image that is not there.
            MissingPackage: pyarrow is not installed.
        """
        found = self.shards(folder)
        released = [path for pattern in self.released for path in sorted(folder.glob(pattern))]
        if found and released:
            raise InvalidInput(
                f"{str(folder)!r} holds both {released[0].name} and {self.holds}. Keep one of them "
                "in the folder: it decides what is read."
            )
        if not found and not released:
            raise InvalidInput(
                f"{str(folder)!r} holds no {' or '.join(self.released)}, as the authors release "
                f"it, and no {self.holds} (there, or in {self.inside}/)."
            )
        return self._seen(found) if found else None

    def values(self, folder: Path, *columns: str) -> Iterator[Row]:
        """Some columns of all rows, without their images; nothing where there are no shards."""
        return (row for _, row in read(self.shards(folder), columns))

    def shards(self, folder: Path) -> list[Path]:
        """The split's files in their order; none if there are none.

        Raises:
            InvalidInput: a shard is missing.
        """
        for place in (folder / self.inside, folder):
            if found := sorted(place.glob(f"{self.split}-*.parquet")):
                _check_complete(found)
                return found
        return []

    def _seen(self, shards: Sequence[Path]) -> Iterator[Row]:
        for where, row in read(shards, (*self.columns, *self.lists, self.image)):
            for name in self.lists:
                if not isinstance(row[name], list):
                    raise InvalidInput(f"{where} has no list in {name}, but {row[name]!r}.")
            yield row | {"image": decoded(row[self.image], where)}


def read(shards: Sequence[Path], columns: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Every row, and where it stands, in words.

    Raises:
        InvalidInput: a file that is no parquet, or has not all of the columns.
        MissingPackage: pyarrow is not installed.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingPackage("a benchmark in parquet files", "pyarrow", "parquet") from error
    for path in shards:
        try:
            with ParquetFile(path) as file:
                _check_columns(path, columns, file.schema_arrow.names)
                number = 0
                for batch in file.iter_batches(TOGETHER, columns=list(columns)):
                    for row in batch.to_pylist():
                        yield f"row {number} of {str(path)!r}", row
                        number += 1
        except (ArrowException, OSError) as error:
            raise InvalidInput(
                f"{str(path)!r} cannot be read as parquet: {error}. Is it a pointer to a file that "
                "was not downloaded (Git LFS)?"
            ) from error


def decoded(cell: Mapping[str, Any] | None, where: str) -> Image.Image:
    """An image that a cell holds as bytes, in RGB.

    Raises:
        InvalidInput: it holds none, or what is no image.
    """
    held = (cell or {}).get("bytes")
    if not held:
        raise InvalidInput(f"{where} holds no image (the bytes of one, not the path alone).")
    try:
        with Image.open(BytesIO(held)) as image:
            return image.convert("RGB")
    except OSError as error:
        raise InvalidInput(f"the image in {where} cannot be read: {error}.") from error


def _check_columns(path: Path, wanted: Sequence[str], there: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in there]:
        raise InvalidInput(
            f"{str(path)!r} has no column {', '.join(missing)}; it has {', '.join(there)}."
        )


def _check_complete(shards: Sequence[Path]) -> None:
    """As many files as their names say: ...-00000-of-00002.parquet."""
    totals = {int(m[1]) for path in shards if (m := re.search(r"-of-(\d+)\.parquet$", path.name))}
    if totals and totals != {len(shards)}:
        raise InvalidInput(
            f"{str(shards[0].parent)!r} holds {len(shards)} of {max(totals)} shards: "
            f"{', '.join(path.name for path in shards)}."
        )
