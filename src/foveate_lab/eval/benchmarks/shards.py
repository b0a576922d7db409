"""A data set in the parquet files of a repository on the Hugging Face hub, with images in cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from foveate.data import Folder, Record
from foveate.data.parquet import columns_of, count_rows, held_image, read_rows
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.forms import BenchmarkForm, BenchmarkRow, Published

HUB = "https://huggingface.co/datasets/"


def _as_it_is(record: Record, image: Image.Image) -> Record:
    return record


@dataclass(frozen=True, kw_only=True)
class Shards(BenchmarkForm[BenchmarkRow]):
    """The split that is asked, in the folder ``inside`` a copy of the repository, or in a folder of
    its own. ``columns`` are read, and ``optional`` ones that are there; ``renamed`` gives those
    their names whose benchmark calls them otherwise. ``image`` is the column with the images.
    ``made`` gives a row the fields that have to be worked out.
    """

    task_split: str
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    inside: str = "data"
    image: str = "image"
    made: Callable[[Record, Image.Image], Record] = _as_it_is

    def find(self, folder: Folder) -> list[Path]:
        """The split's files in their order; none if there are none.

        Raises:
            InvalidInput: a shard is missing.
        """
        for place in (folder.within(self.inside), folder):
            if shards := place.find(f"{self.task_split}-*.parquet"):
                _check_complete(shards)
                return shards
        return []

    def split(self, paths: Sequence[Path]) -> str:
        """The split that is asked: no other is read."""
        return self.task_split

    def count(self, paths: Sequence[Path]) -> int:
        """How many rows the files have."""
        return count_rows(paths)

    def fits(self, paths: Sequence[Path]) -> bool:
        """Whether the first file has all columns."""
        return {*self.columns, self.image} <= {*columns_of(paths[0])}

    def rows(self, folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
        """The rows with their images.

        Raises:
            InvalidInput: a shard that cannot be read; a column or an image that is not there.
            MissingPackage: pyarrow is not installed.
        """
        more = tuple({*self.optional} & {*columns_of(paths[0])}) if self.optional else ()
        for row in read_rows(paths, (*self.columns, *more, self.image)):
            image = held_image(row, self.image, folder)
            names = {new: row.held[old] for old, new in self.renamed.items() if old in row.held}
            yield BenchmarkRow(self.made(row.also(**names), image), image)


def on_hub(repository: str, split: str) -> Published:
    """How a split in a repository is called."""
    owner = repository.partition("/")[0]
    return Published(owner, f"{split}-*.parquet of {repository}", f"{HUB}{repository}")


def _check_complete(shards: Sequence[Path]) -> None:
    """As many files as their names say: ...-00000-of-00002.parquet, a digest behind it or none."""
    names = (re.search(r"-of-(\d+)(?:-[0-9a-f]+)?\.parquet$", path.name) for path in shards)
    totals = {int(match[1]) for match in names if match}
    if totals and totals != {len(shards)}:
        raise InvalidInput(
            f"{str(shards[0].parent)!r} holds {len(shards)} of {max(totals)} shards: "
            f"{', '.join(path.name for path in shards)}. Download the others."
        )
