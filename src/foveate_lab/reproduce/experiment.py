"""An experiment of a paper as data: its runs, the paper's text, and its open points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from foveate.policies.method import Method, Paper
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.models import MODELS, image_note, prompt_notes
from foveate_lab.reproduce.published import PublishedProfile, PublishedRun
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.tables.table import Table
from foveate_lab.reproduce.task_request import Requests

State = Literal["as the paper", "as far as the paper says", "cannot"]


class Open(NamedTuple):
    """A point that a paper leaves open, and the choice made here. ``method`` has to be among the
    policies that run, and one of ``tasks`` among the benchmarks, where the point is about these.
    """

    what: str
    choice: str
    method: str = ""
    tasks: tuple[str, ...] = ()

    def concerns(self, trial: Trial) -> bool:
        """Return whether the point is open in what a trial runs."""
        read = {task.partition("(")[0] for task in trial.tasks()}
        named = any(spec.startswith(self.method) for spec in trial.specs())
        return (not self.method or named) and (not self.tasks or bool(read & {*self.tasks}))


class Reproduced(NamedTuple):
    """A method whose paper's experiments are here. ``name`` is what the paper calls it, ``open``
    what the paper leaves open in all of them. ``differences``: where the paper, its authors' code
    and the method differ. ``sections``: experiments by heading, in the paper's order. ``runs`` are
    those that the authors publish.
    """

    method: Method
    name: str
    open: tuple[Open, ...]
    differences: tuple[str, ...]
    sections: Mapping[str, tuple[str, ...]]
    runs: tuple[PublishedRun, ...] = ()

    @property
    def paper(self) -> Paper:
        """The method's own paper."""
        return self.method.papers[0]


class Trial(ABC):
    """A kind of run, with one of the experiment's models after the other."""

    def tasks(self) -> Sequence[str]:
        """Return the benchmarks that it reads; none where prompts are prose."""
        return ()

    @abstractmethod
    def specs(self) -> Sequence[str]:
        """Return its policies, with budgets and profiles left open."""

    def raised(self) -> Iterable[str]:
        """Return the specs, with budgets, that are raised to what is always kept instead of
        refused.
        """
        return ()

    def requests(self, setting: Setting) -> Requests:
        """Return its requests for answers; others can share the same prompts."""
        return {}

    def profiled(self, setting: Setting) -> Mapping[str, str]:
        """Return specs, with their budgets, whose profiles are needed by rows that are no
        answers.
        """
        return {}

    def measured(self, setting: Setting) -> Iterator[Key]:
        """Yield the keys of its rows that are no answers, those of this part."""
        yield from ()

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """Yield its missing rows that are measured alone, one by one: timed ones, and those read
        off prompts. Executors do all other answers.
        """
        yield from ()

    @abstractmethod
    def summarise(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        """Yield the tables and figures of the rows so far."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure of a paper.

    ``data``, ``metric`` and ``budgets`` are texts for readers; ``trial`` is what runs. ``open``
    are points that this experiment leaves open beside the paper's own; ``departs`` says where the
    run is known to differ from the paper's. ``cannot`` says why its figures cannot be reproduced.
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
        """Faithfulness to the paper, one of three states."""
        if self.cannot:
            return "cannot"
        return "as far as the paper says" if self.unstated or self.departs else "as the paper"

    @property
    def unstated(self) -> tuple[Open, ...]:
        """Open points, each with the choice made here."""
        notes = (MODELS[name].open.partition(": ") for name in self.models if MODELS[name].open)
        models = (Open(what, choice) for what, _, choice in notes)
        shared = (point for point in self.of.open if point.concerns(self.trial))
        return (*self.open, *models, *shared)

    @property
    def settled(self) -> tuple[str, ...]:
        """Sentences on how its models read images and are asked, where authors' code settles it."""
        images = (note for name in self.models if (note := image_note(name)))
        tasks = self.trial.tasks()
        return (*images, *(note for name in self.models for note in prompt_notes(name, tasks)))

    def to_json(self, bring: Sequence[str]) -> dict[str, Any]:
        """Return the entry of ``--list --json``."""
        names = ("where", "shows", "models", "data", "metric", "budgets")
        return {
            "id": self.id,
            "paper": self.of.name,
            "title": self.of.paper.title,
            "arxiv": self.of.paper.arxiv or "",
            **{name: getattr(self, name) for name in names},
            "bring": list(bring),
            "state": self.state,
            "cannot": self.cannot,
            "settled": list(self.settled),
            "departs": list(self.departs),
            "differences": list(self.of.differences),
            "unstated": [{"what": point.what, "choice": point.choice} for point in self.unstated],
            "specs": sorted({*self.trial.specs()}),
        }


class Outcome(NamedTuple):
    """Tables and figures of an experiment."""

    experiment: Experiment
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


@dataclass(frozen=True, kw_only=True)
class FactsTable:
    """A table without results: settings, counts, examples. ``rows`` are its lines."""

    id: str
    of: Reproduced
    where: str
    shows: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
