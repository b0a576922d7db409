"""A data set as its authors release it: JSON files, and images beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from foveate.data import Folder, read_lines
from foveate.data.leftovers import leftovers
from foveate.data.texts import read_json
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.forms import BenchmarkForm, R


def listed_in(paths: Sequence[Path]) -> int:
    """How many records JSON files hold: lines, a list, the list under "data", or all names."""
    return sum(map(_length, paths))


def _length(path: Path) -> int:
    if path.suffix == ".jsonl":
        return sum(1 for _ in read_lines(path))
    held = read_json(path)
    data = held.get("data") if isinstance(held, dict) else None
    records = data if isinstance(data, list) else held
    return len(records) if isinstance(records, list | dict) else 0


def first_of(paths: Sequence[Path]) -> int:
    """How many records the first file holds; the others are about them."""
    return listed_in(paths[:1])


@dataclass(frozen=True, kw_only=True)
class Release(BenchmarkForm[R]):
    """``splits`` are patterns of the files of each split, all of which have to be there, once; the
    first split is asked, another is read where it is alone. ``places`` are the folders that they
    may be in ("data/"), and ``read`` gives the questions of a split's files.
    """

    splits: Mapping[str, tuple[str, ...]]
    read: Callable[[Folder, Sequence[Path]], Iterator[R]]
    places: tuple[str, ...] = ("",)
    counted: Callable[[Sequence[Path]], int] = listed_in
    fitting: Callable[[Sequence[Path]], bool] = lambda paths: True

    def find(self, folder: Folder) -> list[Path]:
        """The asked split's files; those of another, if there is but one."""
        there = {name: paths for name in self.splits if (paths := self._of(folder, name))}
        first = next(iter(self.splits))
        if first not in there and len(there) > 1:
            raise InvalidInput(
                f"{str(folder.path)!r} holds the splits {' and '.join(there)}, and not {first}. "
                f"Put {first} there, which is asked, or leave one of them."
            )
        return there.get(first) or next(iter(there.values()), [])

    def split(self, paths: Sequence[Path]) -> str:
        """The name of the split whose patterns these files fit."""
        for name, patterns in self.splits.items():
            if all(any(path.match(one) for path in paths) for one in patterns):
                return name
        return ""

    def count(self, paths: Sequence[Path]) -> int:
        """How many records the files hold."""
        return self.counted(paths)

    def rows(self, folder: Folder, paths: Sequence[Path]) -> Iterator[R]:
        """The questions."""
        return self.read(folder, paths)

    def fits(self, paths: Sequence[Path]) -> bool:
        """Whether the first record is of this form."""
        return self.fitting(paths)

    def _of(self, folder: Folder, split: str) -> list[Path]:
        patterns = self.splits[split]
        releases = [
            [path for place in self.places for path in folder.find(f"{place}{pattern}")]
            for pattern in patterns
        ]
        for paths in releases:
            if len(paths) > 1:
                names = " and ".join(str(path.relative_to(folder.path)) for path in paths[:2])
                raise InvalidInput(
                    f"{str(folder.path)!r} holds both {names}. Keep one of them in the folder."
                )
        missing = [one for one, paths in zip(patterns, releases, strict=True) if not paths]
        there = [path for paths in releases for path in paths]
        if there and missing:
            raise InvalidInput(
                f"{str(folder.path)!r} holds no {' and no '.join(missing)} beside {there[0].name}. "
                f"Is the download whole?{leftovers(folder.path)}"
            )
        return there
