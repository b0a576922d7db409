"""All forms in which a data set is published, and which of them a folder holds.

What is in the folder decides which form is read, and a folder that holds two of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from foveate.data import Folder
from foveate.data.missing_data import leftovers, listing
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.source import BenchmarkRow, Source


class Chosen(NamedTuple):
    """The form that a folder is of, and its files."""

    source: Source
    paths: list[Path]


class Sources:
    """All forms of a data set, of which a folder holds one."""

    def __init__(self, name: str, *sources: Source):
        self.name, self.sources = name, sources

    @property
    def contents(self) -> str:
        """Contents that a folder has to have, in words."""
        return "; or ".join(dict.fromkeys(source.contents for source in self.sources))

    def rows(self, folder: Folder) -> Iterator[BenchmarkRow]:
        """Yield the questions in a folder.

        Raises:
            InvalidInput: it holds none of the forms or two of them, or what cannot be read.
            MissingPackage: pyarrow is not installed, and the files are parquet.
        """
        source, paths = self.chosen(folder)
        yield from source.rows(folder, paths)

    def chosen(self, folder: Folder) -> Chosen:
        """Return the form that a folder holds.

        Raises:
            InvalidInput: it holds none or two, or one of which a part is missing.
        """
        choices = _found(folder, self.sources)
        if len(choices) > 1:
            first, other = (chosen.paths[0].name for chosen in choices[:2])
            raise InvalidInput(
                f"{str(folder.path)!r} holds both {first} and {other}. Keep one of them in the "
                "folder: it decides what is read."
            )
        if not choices:
            raise InvalidInput(
                f"{str(folder.path)!r} holds no {self.name}: there is {listing(folder.path)}, and "
                f"it has to hold {self.contents}.{leftovers(folder.path)}"
            )
        return choices[0]

    def known_by(self, folder: Folder) -> Chosen | None:
        """Return the form that a folder's files tell, or None."""
        forms = _found(folder, [source for source in self.sources if source.identifies])
        return next((form for form in forms if form.source.fits(form.paths)), None)


def _found(folder: Folder, sources: Iterable[Source]) -> list[Chosen]:
    """Return the form of each group of files: of several the first that they fit, or else the
    first, whose error names what they lack.
    """
    groups: dict[tuple[Path, ...], list[Source]] = {}
    for source in sources:
        if paths := source.find(folder):
            groups.setdefault(tuple(paths), []).append(source)
    return [
        Chosen(
            next((form for form in mine if len(mine) == 1 or form.fits(paths)), mine[0]),
            list(paths),
        )
        for paths, mine in groups.items()
    ]
