"""How far a run of experiments is, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from foveate.eval.results import Key, key_of
from foveate.reproduce.experiment import Experiment


class Step(NamedTuple):
    """An experiment with those of its models that are at one place, and read images alike."""

    experiment: Experiment
    place: str
    models: tuple[str, ...]
    pad_images: bool = False


class Progress(NamedTuple):
    """Step ``number`` ``of`` so many, and the ``rows`` that it has written so far; ``what`` it is
    at. ``over`` when it is.
    """

    number: int
    of: int
    step: Step
    rows: int = 0
    what: str = ""
    over: bool = False


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
