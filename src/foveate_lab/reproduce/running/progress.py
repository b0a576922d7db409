"""Progress of a run of experiments, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, NamedTuple

from foveate_lab.eval.keyed_rows import Key, key_of
from foveate_lab.reproduce.experiment import Experiment


class Step(NamedTuple):
    """An experiment with those of its models that are at one location and read images alike."""

    experiment: Experiment
    location: str
    models: tuple[str, ...]
    pad_images: bool = False


class Progress(NamedTuple):
    """State of a run: ``rows`` exist ``of`` the planned ones of all experiments; ``new`` are of
    this run. ``what`` is the current task, ``left_s`` the seconds left at the rate of this run,
    None before its first row. ``over`` at the end.
    """

    rows: int
    of: int
    new: int = 0
    what: str = ""
    left_s: float | None = None
    over: bool = False


OnProgress = Callable[[Progress], object]


class Meter:
    """Counter of a run's rows that reports each. ``of`` are planned, ``there`` exist."""

    def __init__(self, there: int, of: int, on_progress: OnProgress):
        self.there, self.of, self.on_progress = there, of, on_progress
        self.new, self._began = 0, monotonic()

    def report(self, what: str, over: bool = False) -> None:
        """Report the current task."""
        left_s = None
        if self.new:
            left = max(0, self.of - self.there - self.new)
            left_s = left * (monotonic() - self._began) / self.new
        self.on_progress(Progress(self.there + self.new, self.of, self.new, what, left_s, over))

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """Leave the time of the block, such as that of profiles, out of the rate."""
        began = monotonic()
        yield
        self._began += monotonic() - began

    def row(self, row: Mapping[str, Any]) -> None:
        """Count and report a new row."""
        self.new += 1
        self.report(row["task"])


@dataclass(frozen=True)
class Done:
    """End of a run: refused rows, why experiments did not run, by id, and why benchmarks, or specs
    whose profiles need them, are left out.
    """

    refused: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def note(self, row: Mapping[str, Any]) -> None:
        """Note a row; an answer replaces an earlier refusal."""
        if "error" in row:
            self.refused[key_of(row)] = row
        else:
            self.refused.pop(key_of(row), None)
