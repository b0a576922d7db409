"""An experiment of a paper as data: what is run, what the paper says, and what it leaves open."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from foveate.policies.method import Method, Paper
from foveate_lab.eval.held import Key
from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.ask import Asked
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.models import MODELS, image_note, prompt_notes
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.tables.table import Table

State = Literal["as the paper", "as far as the paper says", "cannot"]


class Open(NamedTuple):
    """Something that a paper does not say, and what is taken here. ``method`` is what has to be
    among the policies that are run, where it is about that one; of ``tasks`` one has to be among
    the benchmarks that are read, where it is about these.
    """

    what: str
    choice: str
    method: str = ""
    tasks: tuple[str, ...] = ()

    def concerns(self, trial: Trial) -> bool:
        """Whether it leaves something open in what an experiment runs."""
        read = {task.partition("(")[0] for task in trial.tasks()}
        named = any(spec.startswith(self.method) for spec in trial.specs())
        return (not self.method or named) and (not self.tasks or bool(read & {*self.tasks}))


class Reproduced(NamedTuple):
    """A method whose paper's experiments are here. ``name`` is what the paper calls it, ``open``
    what the paper leaves open in all of them. ``differences``: where the paper, its authors' code
    and the method differ. ``sections``: experiments by heading, in the paper's order.
    """

    method: Method
    name: str
    open: tuple[Open, ...]
    differences: tuple[str, ...]
    sections: Mapping[str, tuple[str, ...]]

    @property
    def paper(self) -> Paper:
        """The method's own."""
        return self.method.papers[0]


class Trial(ABC):
    """What an experiment runs, with one of its models after the other."""

    def tasks(self) -> Sequence[str]:
        """The benchmarks that it reads; of one whose prompts are prose none."""
        return ()

    @abstractmethod
    def specs(self) -> Sequence[str]:
        """Its policies, with their budgets and profiles left open."""

    def raised(self) -> Iterable[str]:
        """The specs, at their budgets, that are raised to what is always kept, and not refused."""
        return ()

    def asks(self, setting: Setting) -> Asked:
        """The answers among what it needs: others may be asked of the same prompts along."""
        return {}

    def profiled(self, setting: Setting) -> Mapping[str, str]:
        """Specs, with their budgets, whose profiles it needs beside those of missing answers."""
        return {}

    def measured(self, setting: Setting) -> Iterator[Key]:
        """The rows beside answers that it is made of, those of this part."""
        yield from ()

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """The rows that are missing and are measured alone, one after the other: what is timed, and
        what is read off prompts. All other answers are jobs of executors.
        """
        yield from ()

    @abstractmethod
    def shown(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        """What the rows so far show."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure.

    ``data``, ``metric`` and ``budgets`` are words for readers; ``trial`` is what is run. ``open``
    is what this experiment leaves open beside the paper as a whole; ``departs`` where what is run
    is known to differ from what the paper did. ``cannot`` says why its figures cannot be had again.
    """

    id: str
    of: Reproduced
    where: str
    shows: str
    models: tuple[str, ...]
    data: str
    metric: str
    budgets: str
    trial: Trial
    open: tuple[Open, ...] = ()
    departs: tuple[str, ...] = ()
    cannot: str = ""
    bring: tuple[str, ...] = ()
    calibrations: Mapping[str, CalibrationRun | PublishedProfile] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """How far it runs as its authors ran it."""
        if self.cannot:
            return "cannot"
        return "as far as the paper says" if self.unstated or self.departs else "as the paper"

    @property
    def unstated(self) -> tuple[Open, ...]:
        """All that is not said, each with what is taken."""
        notes = (MODELS[name].open.partition(": ") for name in self.models if MODELS[name].open)
        models = (Open(what, choice) for what, _, choice in notes)
        shared = (one for one in self.of.open if one.concerns(self.trial))
        return (*self.open, *models, *shared)

    @property
    def settled(self) -> tuple[str, ...]:
        """How its models read images and are asked, where that follows the authors' code."""
        images = (note for name in self.models if (note := image_note(name)))
        tasks = self.trial.tasks()
        return (*images, *(note for name in self.models for note in prompt_notes(name, tasks)))

    def to_json(self, bring: Sequence[str]) -> dict[str, Any]:
        """What ``--list --json`` says of it."""
        said = ("where", "shows", "models", "data", "metric", "budgets")
        return {
            "id": self.id,
            "paper": self.of.name,
            "title": self.of.paper.title,
            "arxiv": self.of.paper.arxiv or "",
            **{name: getattr(self, name) for name in said},
            "bring": list(bring),
            "state": self.state,
            "cannot": self.cannot,
            "settled": list(self.settled),
            "departs": list(self.departs),
            "differences": list(self.of.differences),
            "unstated": [{"what": one.what, "choice": one.choice} for one in self.unstated],
            "specs": sorted({*self.trial.specs()}),
        }


class Outcome(NamedTuple):
    """What an experiment ended in."""

    experiment: Experiment
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, kw_only=True)
class FactsTable:
    """A table that holds no result: settings, counts, examples. ``rows`` are its lines."""

    id: str
    of: Reproduced
    where: str
    shows: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
