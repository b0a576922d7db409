"""A folder of data, whose files name each other, and may name no others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from foveate.data.images import read_image
from foveate.data.leftovers import leftovers
from foveate.data.records import Record, read_named, read_record, read_records
from foveate.data.texts import reason
from foveate.errors import InvalidInput


@dataclass(frozen=True)
class Folder:
    """A folder of data.

    What its data names has to lie in ``root`` (by default the folder itself), whatever "..",
    absolute paths and links say. ``outside`` lifts that: data then reads any file that you can.
    """

    path: Path
    outside: bool = False
    root: Path | None = None

    def within(self, name: str) -> Folder:
        """A folder in it, with the same limits."""
        return Folder(self.path / name, self.outside, self.root or self.path)

    def find(self, *patterns: str) -> list[Path]:
        """The files that fit the patterns, those of the first before those of the next.

        Raises:
            InvalidInput: one leads out of the folder.
        """
        paths = [path for pattern in patterns for path in sorted(self.path.glob(pattern))]
        return [self._inside(path, str(path)) for path in paths]

    def file(self, name: str, where: str) -> Path:
        """The file of that name, which need not be there; ``where`` it was named.

        Raises:
            InvalidInput: it leads out of the folder.
        """
        return self._inside(self.path / name, f"{where}: {name!r}")

    def records(self, *patterns: str) -> list[Record]:
        """The records of the first file that fits: see :func:`read_records`."""
        return read_records(self._first(patterns))

    def record(self, *patterns: str) -> Record:
        """The object in the first file that fits: see :func:`read_record`."""
        return read_record(self._first(patterns))

    def named(self, *patterns: str) -> list[tuple[str, Record]]:
        """The objects in the first file that fits, and their names: see :func:`read_named`."""
        return read_named(self._first(patterns))

    def image(self, record: Record, field: str, *places: str) -> Image.Image:
        """The image that a record's field names; ``places`` are where it may be ("png/{}", or
        "png/{base}" for the end of a name that has folders of its own).

        Raises:
            InvalidInput: it is at none of them, leads out of the folder, or is no image.
        """
        return self._image(record.text_or_number(field), places, f"{record.where}, field {field!r}")

    def images(self, record: Record, field: str, place: str = "{}") -> tuple[Image.Image, ...]:
        """The images that a field lists."""
        where = f"{record.where}, field {field!r}"
        return tuple(self._image(name, (place,), where) for name in record.texts(field))

    def named_file(self, name: str, where: str, *places: str) -> Path:
        """The file of that name at the first of the places ("videos/{}") at which there is one;
        ``where`` it was named.

        Raises:
            InvalidInput: it is at none of them, or leads out of the folder.
        """
        base = name.rpartition("/")[2]
        names = [place.format(name, base=base) for place in places]
        for one in names:
            path = self.file(one, where)
            if os.path.exists(path):  # false as well for what is no name of a file
                return path
        raise InvalidInput(
            f"{where}: {str(self.path)!r} holds no {' or '.join(dict.fromkeys(names))}."
            f"{leftovers(self.path)}"
        )

    def _image(self, name: str, places: Sequence[str], where: str) -> Image.Image:
        return read_image(self.named_file(name, where, *places), where)

    def _first(self, patterns: Sequence[str]) -> Path:
        if paths := self.find(*patterns):
            return paths[0]
        raise InvalidInput(
            f"{str(self.path)!r} holds no {' or '.join(patterns)}.{leftovers(self.path)}"
        )

    def _inside(self, path: Path, name: str) -> Path:
        if self.outside:
            return path
        try:
            real, root = path.resolve(), (self.root or self.path).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # links in a ring, a NUL in a name
            raise InvalidInput(f"{name} cannot be read: {reason(error)}.") from error
        if not any(real.is_relative_to(place) for place in (root, *_blobs(root))):
            raise InvalidInput(
                f"{name} leads out of {str(root)!r}, to {str(real)!r}. Data may name files of its "
                "own folder only: put it there, or permit others with --allow-outside."
            )
        return path


def _blobs(root: Path) -> list[Path]:
    """Where the hub's cache has the files that a snapshot links to."""
    snapshots = (place for place in root.parents if place.name == "snapshots")
    return [place.parent / "blobs" for place in snapshots]
