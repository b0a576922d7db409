"""Folder of data, whose files may name only files inside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from foveate.data.images import read_image
from foveate.data.missing_data import leftovers
from foveate.data.records import Record, read_named, read_record, read_records
from foveate.data.texts import reason
from foveate.errors import InvalidInput


@dataclass(frozen=True)
class Folder:
    """Folder of data.

    Files that its data names must be inside ``root`` (by default the folder itself), after "..",
    absolute paths and links are resolved. ``outside`` permits any file that the user can read.
    """

    path: Path
    outside: bool = False
    root: Path | None = None

    def within(self, name: str) -> Folder:
        """Return a subfolder with the same limits."""
        return Folder(self.path / name, self.outside, self.root or self.path)

    def find(self, *patterns: str) -> list[Path]:
        """Return the files that match the glob patterns, in the order of the patterns.

        Raises:
            InvalidInput: a file is outside the folder.
        """
        paths = [path for pattern in patterns for path in sorted(self.path.glob(pattern))]
        return [self._check_inside(path, str(path)) for path in paths]

    def file(self, name: str, where: str) -> Path:
        """Return the path of a file, which need not exist; ``where`` it is named is for errors.

        Raises:
            InvalidInput: it is outside the folder.
        """
        return self._check_inside(self.path / name, f"{where}: {name!r}")

    def records(self, *patterns: str) -> list[Record]:
        """Return the records of the first file that matches: see :func:`read_records`."""
        return read_records(self._first_match(patterns))

    def record(self, *patterns: str) -> Record:
        """Return the object in the first file that matches: see :func:`read_record`."""
        return read_record(self._first_match(patterns))

    def named(self, *patterns: str) -> list[tuple[str, Record]]:
        """Return the named objects in the first file that matches: see :func:`read_named`."""
        return read_named(self._first_match(patterns))

    def image(self, record: Record, field: str, *templates: str) -> Image.Image:
        """Return the image that a record's field names.

        ``templates`` are its possible paths: "png/{}", or "png/{base}" for a name without its
        folders.

        Raises:
            InvalidInput: no path exists, or it is outside the folder or no image.
        """
        return self._image(
            record.text_or_number(field), templates, f"{record.where}, field {field!r}"
        )

    def images(self, record: Record, field: str, template: str = "{}") -> tuple[Image.Image, ...]:
        """Return the images that a field lists."""
        where = f"{record.where}, field {field!r}"
        return tuple(self._image(name, (template,), where) for name in record.texts(field))

    def named_file(self, name: str, where: str, *templates: str) -> Path:
        """Return the first existing path of a file, of ``templates`` such as "videos/{}".

        ``where`` it is named is for errors.

        Raises:
            InvalidInput: no path exists, or it is outside the folder.
        """
        base = name.rpartition("/")[2]
        names = [template.format(name, base=base) for template in templates]
        for candidate in names:
            path = self.file(candidate, where)
            if os.path.exists(path):  # False also for a text that cannot be a file's name
                return path
        raise InvalidInput(
            f"{where}: {str(self.path)!r} holds no {' or '.join(dict.fromkeys(names))}."
            f"{leftovers(self.path)}"
        )

    def _image(self, name: str, templates: Sequence[str], where: str) -> Image.Image:
        return read_image(self.named_file(name, where, *templates), where)

    def _first_match(self, patterns: Sequence[str]) -> Path:
        if paths := self.find(*patterns):
            return paths[0]
        raise InvalidInput(
            f"{str(self.path)!r} holds no {' or '.join(patterns)}.{leftovers(self.path)}"
        )

    def _check_inside(self, path: Path, name: str) -> Path:
        if self.outside:
            return path
        try:
            real, root = path.resolve(), (self.root or self.path).resolve()
        except (OSError, ValueError, RuntimeError) as error:  # circular links, a NUL in a name
            raise InvalidInput(f"{name} cannot be read: {reason(error)}.") from error
        if not any(real.is_relative_to(folder) for folder in (root, *_blob_folders(root))):
            raise InvalidInput(
                f"{name} leads out of {str(root)!r}, to {str(real)!r}. Data may name files of its "
                "own folder only: put it there, or permit others with --allow-outside."
            )
        return path


def _blob_folders(root: Path) -> list[Path]:
    """Return the folders to which the hub cache's snapshots link, if ``root`` is in a snapshot."""
    snapshots = (folder for folder in root.parents if folder.name == "snapshots")
    return [folder.parent / "blobs" for folder in snapshots]
