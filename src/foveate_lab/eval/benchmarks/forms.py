"""The forms in which a data set is published, and which of them a folder holds.

Authors release archives; repositories on the Hugging Face hub have parquet files, with the images
in their cells; VLMEvalKit has tables of tab-separated values. What is in the folder decides which
form is read, and a folder that holds two of them is refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from PIL import Image

from foveate.data import Folder, Record
from foveate.data.leftovers import leftovers, listing
from foveate.errors import InvalidInput

R = TypeVar("R")


class BenchmarkRow(NamedTuple):
    """A question, under the names that its benchmark asks for, and its image in RGB."""

    record: Record
    image: Image.Image


class Published(NamedTuple):
    """Who publishes a form, what has to be in the folder, and where it is."""

    by: str
    holds: str
    address: str


@dataclass(frozen=True, kw_only=True)
class BenchmarkForm(ABC, Generic[R]):
    """One form. ``telling``: its files are of this data set alone, so that a folder with them
    is known by them.
    """

    published: Published
    telling: bool = True

    @abstractmethod
    def find(self, folder: Folder) -> list[Path]:
        """Its files in a folder, none where it is not of this form.

        Raises:
            InvalidInput: some are missing, or there are two splits of which none is asked.
        """

    @abstractmethod
    def split(self, paths: Sequence[Path]) -> str:
        """The split that these files are of, as its publisher calls it."""

    @abstractmethod
    def count(self, paths: Sequence[Path]) -> int:
        """How many questions there are; images are not read for it."""

    @abstractmethod
    def rows(self, folder: Folder, paths: Sequence[Path]) -> Iterator[R]:
        """The questions, in the order of the files."""

    def fits(self, paths: Sequence[Path]) -> bool:
        """Whether files of these names hold the fields of this form."""
        return True


class Chosen(NamedTuple):
    """The form that a folder is of, and its files."""

    form: BenchmarkForm[Any]
    paths: list[Path]


@dataclass(frozen=True)
class Forms(Generic[R]):
    """All forms of a data set, of which a folder holds one."""

    name: str
    forms: tuple[BenchmarkForm[R], ...]

    @property
    def holds(self) -> str:
        """What has to be in a folder, in words."""
        return "; or ".join(dict.fromkeys(one.published.holds for one in self.forms))

    def rows(self, folder: Folder) -> Iterator[R]:
        """The questions in a folder.

        Raises:
            InvalidInput: it holds none of the forms or two of them, or what cannot be read.
            MissingPackage: pyarrow is not installed, and the files are parquet.
        """
        form, paths = self.chosen(folder)
        yield from form.rows(folder, paths)

    def chosen(self, folder: Folder) -> Chosen:
        """The form that a folder holds.

        Raises:
            InvalidInput: it holds none or two, or one of which a part is missing.
        """
        choices = self._found(folder)
        if len(choices) > 1:
            one, other = (chosen.paths[0].name for chosen in choices[:2])
            raise InvalidInput(
                f"{str(folder.path)!r} holds both {one} and {other}. Keep one of them in the "
                "folder: it decides what is read."
            )
        if not choices:
            raise InvalidInput(
                f"{str(folder.path)!r} holds no {self.name}: there is {listing(folder.path)}, and "
                f"it has to hold {self.holds}.{leftovers(folder.path)}"
            )
        return choices[0]

    def known_by(self, folder: Folder) -> Chosen | None:
        """The form that a folder is known by, if it is known."""
        telling = Forms(self.name, tuple(one for one in self.forms if one.telling))
        fitting = [one for one in telling._found(folder) if one.form.fits(one.paths)]
        return fitting[0] if fitting else None

    def _found(self, folder: Folder) -> list[Chosen]:
        """The form of each group of files; of several that files may be of, the one they fit."""
        groups: dict[tuple[Path, ...], list[BenchmarkForm[R]]] = {}
        for form in self.forms:
            if paths := form.find(folder):
                groups.setdefault(tuple(paths), []).append(form)
        return [Chosen(_fitting(forms, paths), list(paths)) for paths, forms in groups.items()]


def _fitting(forms: Sequence[BenchmarkForm[R]], paths: Sequence[Path]) -> BenchmarkForm[R]:
    """The first that files fit; where none does, the first, which says what they lack."""
    if len(forms) == 1:
        return forms[0]
    return next((form for form in forms if form.fits(paths)), forms[0])


Parts = Callable[..., Mapping[str, Forms[Any]]]
"""The data sets that a benchmark reads under its options, by name; one alone has none."""
