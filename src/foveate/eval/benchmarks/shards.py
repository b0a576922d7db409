"""A benchmark as others than its authors hold it, with the images inside: parquet files, in shards,
of a repository on the Hugging Face hub, or the table of tab-separated values of VLMEvalKit.

A folder is a copy of the repository, or holds the shards or the table alone. What is in it decides
whether it is read so, or as the benchmark's authors release it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from foveate.data import Folder, Record, read_table, table_images
from foveate.data.parquet import held_image, read_rows
from foveate.errors import InvalidInput


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Where on the hub a benchmark is: a repository, the folder ``inside`` it that has the shards,
    and the split that is asked. ``columns`` are read; ``image`` is the one with the images.
    ``released`` are patterns of the files of the authors' release. ``table`` is VLMEvalKit's file,
    and ``table_columns`` what is read of it, under the names that the reader asks for.
    """

    repository: str
    split: str
    columns: tuple[str, ...]
    released: tuple[str, ...]
    inside: str = "data"
    image: str = "image"
    table: str = ""
    table_columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def holds(self) -> str:
        """What has to be in a folder, in words."""
        shards = f"{self.split}-*.parquet of {self.repository}"
        return f"{shards}, or VLMEvalKit's {self.table}" if self.table else shards

    def rows(self, folder: Folder) -> Iterator[tuple[Record, Image.Image]] | None:
        """The rows of the split in their order, with their images in RGB; None for a folder that is
        to be read as the authors release it.

        Raises:
            InvalidInput: a folder that holds both, or neither; a shard that is missing or cannot be
                read; a column or an image that is not there.
            MissingPackage: pyarrow is not installed.
        """
        found, released = self.shards(folder), folder.find(*self.released)
        table = folder.find(self.table) if self.table else []
        kinds = [kind[0] for kind in (released, found, table) if kind]
        if len(kinds) > 1:
            raise InvalidInput(
                f"{str(folder.path)!r} holds both {kinds[0].name} and {kinds[1].name}. Keep one of "
                "them in the folder: it decides what is read."
            )
        if not kinds:
            raise InvalidInput(
                f"{str(folder.path)!r} holds no {' or '.join(self.released)}, as the authors "
                f"release it, and no {self.holds} (there, or in {self.inside}/)."
            )
        if table:
            return self._tabled(table[0])
        return self._seen(folder, found) if found else None

    def values(self, folder: Folder, *columns: str) -> Iterator[Record]:
        """Some columns of all rows, without their images; nothing where there are no shards."""
        return read_rows(self.shards(folder), columns)

    def shards(self, folder: Folder) -> list[Path]:
        """The split's files in their order; none if there are none.

        Raises:
            InvalidInput: a shard is missing.
        """
        for place in (folder.within(self.inside), folder):
            if found := place.find(f"{self.split}-*.parquet"):
                _check_complete(found)
                return found
        return []

    def _tabled(self, path: Path) -> Iterator[tuple[Record, Image.Image]]:
        """The rows of VLMEvalKit's table, whose columns get the names that are asked for."""
        rows = read_table(path, ("index", "image", *self.table_columns))
        for row, image in zip(rows, table_images(rows), strict=True):
            named = {new: row.held[old] for old, new in self.table_columns.items()}
            yield row.also(**named), image

    def _seen(self, folder: Folder, shards: Sequence[Path]) -> Iterator[tuple[Record, Image.Image]]:
        for row in read_rows(shards, (*self.columns, self.image)):
            yield row, held_image(row, self.image, folder)


def _check_complete(shards: Sequence[Path]) -> None:
    """As many files as their names say: ...-00000-of-00002.parquet."""
    totals = {int(m[1]) for path in shards if (m := re.search(r"-of-(\d+)\.parquet$", path.name))}
    if totals and totals != {len(shards)}:
        raise InvalidInput(
            f"{str(shards[0].parent)!r} holds {len(shards)} of {max(totals)} shards: "
            f"{', '.join(path.name for path in shards)}."
        )
