"""Requests of experiments: samples of a benchmark under specs, and digests of the data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from foveate.data import files, read_record
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.keyed_rows import Key

DRAWN = "drawn.json"


class TaskRequest(NamedTuple):
    """``samples`` of a benchmark, with prompts of at most ``longest_prompt`` tokens.
    ``marks`` tell the rows of one way to ask from those of another.
    """

    task: str
    samples: int
    longest_prompt: int | None = None
    timed: bool = False
    marks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the task in the rows."""
        return ", ".join((self.task, *self.marks))


Requests = Mapping[TaskRequest, Mapping[str, str]]
"""Specs of each request, with their budgets."""


def merged(several: Iterable[Requests]) -> dict[TaskRequest, dict[str, str]]:
    """Join the requests of several experiments."""
    requests: dict[TaskRequest, dict[str, str]] = {}
    for mapping in several:
        for request, specs in mapping.items():
            requests.setdefault(request, {}).update(specs)
    return requests


class Part(NamedTuple):
    """Part ``number``, from 1, ``of`` so many: every so many-th ``batch`` of samples. Who is
    answered together follows from a sample's index alone, whichever part runs.
    """

    number: int = 1
    of: int = 1
    batch: int = 1

    def has(self, index: int) -> bool:
        """Return whether a sample belongs to the part, by its index among the drawn samples."""
        return index // self.batch % self.of == self.number - 1


WHOLE = Part()


def keys(
    request: TaskRequest, specs: Mapping[str, str], names: tuple[str, ...], part: Part
) -> Iterator[Key]:
    """Yield the keys of all rows of a part. Timed requests are not split: they are of part 1."""
    for index, name in enumerate(names):
        if part.number == 1 if request.timed else part.has(index):
            for spec in dict.fromkeys((FULL, *specs)):
                yield request.name, name, spec


class Drawn(NamedTuple):
    """Samples of a request: their names in the order of drawing, why data could not be read ("" if
    they could), and a digest that changes with any sample.
    """

    names: tuple[str, ...]
    why: str
    digest: str


def digests(known: Mapping[tuple[str, int], Drawn]) -> dict[str, str]:
    """Return the digests by benchmark and number of samples, of data that were read to the end."""
    return {
        f"{task}, {samples}": record.digest
        for (task, samples), record in known.items()
        if record.names and not record.why
    }


def drawn(out: Path) -> dict[str, str]:
    """Read the digests of the data that a folder's rows are of; empty before a run has ended.

    Raises:
        InvalidInput: the file holds no such table.
    """
    path = out / DRAWN
    return dict(read_record(path).fields) if path.exists() else {}


def note_drawn(out: Path, known_digests: Mapping[str, str]) -> None:
    """Add digests to those of a folder.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    files.write(out / DRAWN, json.dumps({**drawn(out), **known_digests}, indent=1) + "\n")
