"""What an experiment asks of a model: samples of a benchmark, under specs; and digests that tell
whether two folders ask the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from foveate.data import files, read_record
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.held import Key

DRAWN = "drawn.json"


class Ask(NamedTuple):
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
        """What its rows call the task."""
        return ", ".join((self.task, *self.marks))


Asked = Mapping[Ask, Mapping[str, str]]
"""The specs of each, with their budgets."""


def merged(several: Iterable[Asked]) -> dict[Ask, dict[str, str]]:
    """What is asked in all."""
    asks: dict[Ask, dict[str, str]] = {}
    for asked in several:
        for ask, specs in asked.items():
            asks.setdefault(ask, {}).update(specs)
    return asks


class Part(NamedTuple):
    """Part ``number``, from 1, ``of`` so many of what is asked: every so many-th ``batch`` of
    samples. So who is answered beside whom follows from a sample's place, whatever part is asked.
    """

    number: int = 1
    of: int = 1
    batch: int = 1

    def has(self, place: int) -> bool:
        """Whether a sample belongs to it, by its place among those that are drawn."""
        return place // self.batch % self.of == self.number - 1


WHOLE = Part()


def keys(ask: Ask, specs: Mapping[str, str], names: tuple[str, ...], part: Part) -> Iterator[Key]:
    """Of the rows of all samples of a part. What is timed is not shared out: it is of the first."""
    for place, name in enumerate(names):
        if part.number == 1 if ask.timed else part.has(place):
            for spec in dict.fromkeys((FULL, *specs)):
                yield ask.name, name, spec


class Drawn(NamedTuple):
    """The names of the samples of an ask, in the order in which they are drawn, what kept data from
    being read, or "", and a digest of all samples: the same only where the same is asked.
    """

    names: tuple[str, ...]
    why: str
    digest: str


def digests(known: Mapping[tuple[str, int], Drawn]) -> dict[str, str]:
    """By benchmark and number of samples; of what was read to its end."""
    return {
        f"{task}, {samples}": one.digest
        for (task, samples), one in known.items()
        if one.names and not one.why
    }


def drawn(out: Path) -> dict[str, str]:
    """The digests of the data that a folder's rows were asked of; none while no run has come to its
    end.

    Raises:
        InvalidInput: the file holds no such table.
    """
    path = out / DRAWN
    return dict(read_record(path).fields) if path.exists() else {}


def note_drawn(out: Path, known_digests: Mapping[str, str]) -> None:
    """Adds digests to those of a folder.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    files.write(out / DRAWN, json.dumps({**drawn(out), **known_digests}, indent=1) + "\n")
