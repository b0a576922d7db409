"""One published form of a data set: which files it is, and how their rows are read.

Authors release JSON files with images beside them; repositories on the Hugging Face hub have
parquet files, with the images in their cells; VLMEvalKit has tables of tab-separated values, with
the images in base64. A :class:`Source` declares any of them, and is read by its files' suffix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from foveate.data import (
    Folder,
    Record,
    listed,
    read_lines,
    read_record,
    read_records,
    read_table,
    read_text,
    table_images,
)
from foveate.data.missing_data import leftovers
from foveate.data.parquet import columns_of, count_rows, held_image, read_rows
from foveate.data.tables import count_table
from foveate.errors import InvalidInput

AUTHORS = "the authors"
HUB = "https://huggingface.co/datasets/"
KIT = "https://github.com/open-compass/VLMEvalKit"
DELIMITERS = {".tsv": "\t", ".csv": ","}
Images = tuple[Image.Image, ...]
Fields = Mapping[str, Any]


class BenchmarkRow(NamedTuple):
    """A question under the names that its benchmark asks for, and its images in RGB."""

    record: Record
    images: Images = ()


def _unchanged(record: Record, images: Images) -> Record:
    return record


@dataclass(frozen=True, kw_only=True)
class Source:
    """A published form of a data set.

    Args:
        publisher: who publishes it.
        contents: what the folder has to contain, in words.
        address: where it is found.
        splits: file patterns of each split; each has to match one file. The first split is read,
            or another one if no other is there.
        folders: where the files may be ("data/").
        shards: whether a pattern matches any number of files, in the first folder that has some.
        identifies: whether files of these names tell that a folder is of this data set.
        columns: required columns of tables and parquet files; fields of the first JSON line.
        optional: further columns of parquet files, read if present.
        renamed: the benchmark's names of columns, by the published ones.
        lists: fields that contain a list as Python text, or one text alone.
        records_field: field of a JSON object that lists the records.
        path_fields: returns the fields that a file's path tells of its records.
        image_column: column that contains the images.
        image_fields: fields that name an image file; the first present one is read. In a table,
            used if ``image_column`` is empty.
        image_places: where an image file may be ("images/{}").
        read: reads the records of files that are not plain lists.
        prepare: adds computed fields to a row.
    """

    publisher: str = AUTHORS
    contents: str
    address: str
    splits: Mapping[str, tuple[str, ...]]
    folders: tuple[str, ...] = ("",)
    shards: bool = False
    identifies: bool = True
    columns: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    lists: tuple[str, ...] = ()
    records_field: str = ""
    path_fields: Callable[[Path], Fields] = lambda path: {}
    image_column: str = ""
    image_fields: tuple[str, ...] = ()
    image_places: tuple[str, ...] = ("{}",)
    read: Callable[[Sequence[Path]], Iterable[Record]] | None = None
    prepare: Callable[[Record, Images], Record] = _unchanged

    def find(self, folder: Folder) -> list[Path]:
        """Return the files of the first split in a folder, or of the only one; else none.

        Raises:
            InvalidInput: some are missing, or there are two splits and not the first.
        """
        there = {name: paths for name in self.splits if (paths := self._split_in(folder, name))}
        first = next(iter(self.splits))
        if first not in there and len(there) > 1:
            raise InvalidInput(
                f"{str(folder.path)!r} holds the splits {' and '.join(there)}, and not {first}. "
                f"Put {first} there, which is asked, or leave one of them."
            )
        return there.get(first) or next(iter(there.values()), [])

    def split(self, paths: Sequence[Path]) -> str:
        """Return the split that files are of, as its publisher calls it."""
        for name, patterns in self.splits.items():
            if all(any(path.match(pattern) for path in paths) for pattern in patterns):
                return name
        return ""

    def count(self, paths: Sequence[Path]) -> int:
        """Return the number of records in the files, without reading images."""
        suffix = paths[0].suffix
        if suffix == ".parquet":
            return count_rows(paths)
        if suffix in DELIMITERS:
            return sum(count_table(path, DELIMITERS[suffix]) for path in paths)
        return sum(1 for records, _ in self._records(paths) for _ in records)

    def fits(self, paths: Sequence[Path]) -> bool:
        """Return whether the first file has the fields of this form, as far as is quickly known."""
        required = {*self.columns, *filter(None, [self.image_column])}
        if required and paths[0].suffix == ".parquet":
            return required <= {*columns_of(paths[0])}
        if required and paths[0].suffix == ".jsonl":
            return required <= {*next((record.fields for record in read_lines(paths[0])), ())}
        return True

    def rows(self, folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
        """Yield the questions with their images, in the order of the files.

        Raises:
            InvalidInput: a file that cannot be read; a column or an image that is not there.
            MissingPackage: pyarrow is not installed, and the files are parquet.
        """
        for records, fields in self._records(paths):
            for record, images in self._with_images(folder, records, paths[0].suffix):
                yield BenchmarkRow(self.prepare(self._named(record.also(**fields)), images), images)

    def _records(self, paths: Sequence[Path]) -> Iterator[tuple[Iterable[Record], Fields]]:
        """Yield the records of each file with the fields that its path tells; those of all files at
        once where ``read`` is given.
        """
        if self.read:
            yield self.read(paths), {}
            return
        optional = {*columns_of(paths[0])} & {*self.optional} if self.optional else ()
        for path in paths:
            yield self._read(path, optional), self.path_fields(path)

    def _read(self, path: Path, optional: Iterable[str]) -> Iterable[Record]:
        if path.suffix == ".parquet":
            return read_rows([path], (*self.columns, *optional, *filter(None, [self.image_column])))
        if path.suffix in DELIMITERS:
            return read_table(path, self.columns, DELIMITERS[path.suffix])
        if path.suffix == ".txt":
            return [Record({"text": read_text(path)}, str(path))]
        return (
            read_record(path).records(self.records_field)
            if self.records_field
            else read_records(path)
        )

    def _with_images(
        self, folder: Folder, records: Iterable[Record], suffix: str
    ) -> Iterator[BenchmarkRow]:
        tabled = list(records) if self.image_column and suffix in DELIMITERS else []
        if tabled and (tabled[0].has(self.image_column) or not self.image_fields):
            for record, image in zip(tabled, table_images(tabled), strict=True):
                yield BenchmarkRow(record, (image,))
            return
        for record in tabled or records:
            if self.image_column and suffix == ".parquet":
                yield BenchmarkRow(record, (held_image(record, self.image_column, folder),))
            elif self.image_fields:
                name = next(filter(record.has, self.image_fields), self.image_fields[-1])
                yield BenchmarkRow(record, (folder.image(record, name, *self.image_places),))
            else:
                yield BenchmarkRow(record)

    def _named(self, record: Record) -> Record:
        columns = record.fields
        renamed = {new: columns[old] for old, new in self.renamed.items() if old in columns}
        record = record.also(**renamed)
        for name in self.lists:
            record = as_list(record, name)
        return record

    def _split_in(self, folder: Folder, split: str) -> list[Path]:
        patterns = self.splits[split]
        if self.shards:
            (pattern,) = patterns
            each = (folder.find(f"{inner}{pattern}") for inner in self.folders)
            return _complete(next(filter(None, each), []))
        matches = [
            [path for inner in self.folders for path in folder.find(f"{inner}{pattern}")]
            for pattern in patterns
        ]
        for paths in matches:
            if len(paths) > 1:
                names = " and ".join(str(path.relative_to(folder.path)) for path in paths[:2])
                raise InvalidInput(
                    f"{str(folder.path)!r} holds both {names}. Keep one of them in the folder."
                )
        missing = [pattern for pattern, paths in zip(patterns, matches, strict=True) if not paths]
        there = [path for paths in matches for path in paths]
        if there and missing:
            raise InvalidInput(
                f"{str(folder.path)!r} holds no {' and no '.join(missing)} beside {there[0].name}. "
                f"Is the download whole?{leftovers(folder.path)}"
            )
        return there


def on_hub(
    repository: str, split: str, *columns: str, folder: str = "data/", **settings: Any
) -> Source:
    """Return a split in the parquet files of a repository on the hub, with images in cells unless
    ``image_column`` says otherwise. The files are in ``folder``, or at the top.
    """
    files = f"{split}-*.parquet"
    declared: dict[str, Any] = {
        "publisher": repository.partition("/")[0],
        "contents": f"{files} of {repository}",
        "address": f"{HUB}{repository}",
        "splits": {split: (files,)},
        "folders": (folder, ""),
        "shards": True,
        "columns": columns,
        "image_column": "image",
    }
    return Source(**declared | settings)


def in_kit(table: str, split: str, columns: Mapping[str, str], **settings: Any) -> Source:
    """Return a table of VLMEvalKit; ``columns`` has the benchmark's names by the table's."""
    return Source(
        publisher="VLMEvalKit",
        contents=f"VLMEvalKit's {table}",
        address=KIT,
        splits={split: (table,)},
        columns=("index", "image", *columns),
        renamed=columns,
        image_column="image",
        **settings,
    )


def as_list(record: Record, name: str) -> Record:
    """Return the record with a list in place of the text of a list, or of one text."""
    text = record.text(name)
    return listed(record, name) if text.startswith("[") else record.also(**{name: [text]})


def _complete(shards: list[Path]) -> list[Path]:
    """Return the shards, all there as their names count them: ...-00000-of-00002.parquet, with a
    digest behind it or not.
    """
    names = (re.search(r"-of-(\d+)(?:-[0-9a-f]+)?\.parquet$", path.name) for path in shards)
    totals = {int(match[1]) for match in names if match}
    if totals and totals != {len(shards)}:
        raise InvalidInput(
            f"{str(shards[0].parent)!r} holds {len(shards)} of {max(totals)} shards: "
            f"{', '.join(path.name for path in shards)}. Download the others."
        )
    return shards
