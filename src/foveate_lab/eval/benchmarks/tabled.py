"""A data set in a table of VLMEvalKit: one row a question, its image in base64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foveate.data import Folder, Record, listed, read_table, table_images
from foveate.data.tables import count_table
from foveate_lab.eval.benchmarks.forms import BenchmarkForm, BenchmarkRow, Published

KIT = "https://github.com/open-compass/VLMEvalKit"


@dataclass(frozen=True, kw_only=True)
class Tabled(BenchmarkForm[BenchmarkRow]):
    """The ``table`` that is read; ``columns`` are what is read of it, with the names that its
    benchmark asks for. ``lists`` are those that hold Python's text of a list, or one text alone.
    ``made`` gives a row the fields that have to be worked out.
    """

    table: str
    task_split: str
    columns: Mapping[str, str]
    lists: tuple[str, ...] = ()
    made: Callable[[Record], Record] = lambda record: record

    def find(self, folder: Folder) -> list[Path]:
        """The table, if it is there."""
        return folder.find(self.table)

    def split(self, paths: Sequence[Path]) -> str:
        """The split that the table's name says."""
        return self.task_split

    def count(self, paths: Sequence[Path]) -> int:
        """How many rows it has."""
        return sum(map(count_table, paths))

    def rows(self, folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
        """The rows with their images.

        Raises:
            InvalidInput: it cannot be read, or has no such column or image.
        """
        (path,) = paths
        records = read_table(path, ("index", "image", *self.columns))
        for record, image in zip(records, table_images(records), strict=True):
            yield BenchmarkRow(self._named(record), image)

    def _named(self, record: Record) -> Record:
        named = record.also(**{new: record.held[old] for old, new in self.columns.items()})
        for name in self.lists:
            named = as_list(named, name)
        return self.made(named)


def as_list(record: Record, name: str) -> Record:
    """The record with a list in a cell that holds the text of one, or one text alone."""
    text = record.text(name)
    return listed(record, name) if text.startswith("[") else record.also(**{name: [text]})


def in_kit(table: str) -> Published:
    """How a table of VLMEvalKit is called."""
    return Published("VLMEvalKit", f"VLMEvalKit's {table}", KIT)
