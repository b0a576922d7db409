"""How far a run of experiments is, and what it came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from foveate_lab.eval.held import Key, key_of
from foveate_lab.reproduce.experiment import Experiment


class Step(NamedTuple):
    """An experiment with those of its models that are at one place, and read images alike."""

    experiment: Experiment
    place: str
    models: tuple[str, ...]
    pad_images: bool = False


class Progress(NamedTuple):
    """``rows`` that are there ``of`` those that are planned, of all experiments; ``new`` ones are
    of this run. ``what`` it is at, and the seconds that are left at the rate of this run; None
    before its first row. ``over`` when it is.
    """

    rows: int
    of: int
    new: int = 0
    what: str = ""
    left_s: float | None = None
    over: bool = False


Tell = Callable[[Progress], object]


class Meter:
    """Counts the rows of a run, and tells of each. ``of`` are planned, ``there`` are there."""

    def __init__(self, there: int, of: int, tell: Tell):
        self.there, self.of, self.tell = there, of, tell
        self.new, self._began = 0, monotonic()

    def say(self, what: str, over: bool = False) -> None:
        """Tells what it is at."""
        left_s = None
        if self.new:
            left = max(0, self.of - self.there - self.new)
            left_s = left * (monotonic() - self._began) / self.new
        self.tell(Progress(self.there + self.new, self.of, self.new, what, left_s, over))

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """What takes long in the block, as profiles do, is in no row's time."""
        began = monotonic()
        yield
        self._began += monotonic() - began

    def row(self, row: Mapping[str, Any]) -> None:
        """One more."""
        self.new += 1
        self.say(row["task"])


@dataclass(frozen=True)
class Done:
    """Rows that were refused, why experiments were not run, by id, and why benchmarks, or the
    specs whose profiles need them, are left out of those that were.
    """

    refused: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def note(self, row: Mapping[str, Any]) -> None:
        """One more row; an answer takes the place of what was refused before."""
        if "error" in row:
            self.refused[key_of(row)] = row
        else:
            self.refused.pop(key_of(row), None)
