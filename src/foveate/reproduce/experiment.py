"""An experiment of a paper as data: what is run, what the paper says, and what it leaves open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from foveate.reproduce.calibrations import Calibration
from foveate.reproduce.models import MODELS
from foveate.reproduce.part import Part

State = Literal["as the paper", "as far as the paper says", "cannot"]


class Open(NamedTuple):
    """Something that a paper does not say, and what is taken here."""

    what: str
    choice: str


UNREADABLE = Open("plotted values", "none is in the text: drawn, with nothing to compare with")


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper. ``open_`` is what it leaves open in all of its experiments; lines of figures are
    those of the paper's plain text.
    """

    name: str
    title: str
    arxiv: str
    open_: tuple[Open, ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure.

    ``data``, ``metric`` and ``budgets`` are words for readers; ``parts`` are what is run. ``open_``
    is what this experiment leaves open beside the paper as a whole; ``departs`` where what is run
    is known to differ from what the paper did. ``cannot`` says why its figures cannot be had again.
    """

    id: str
    paper: Paper
    where: str
    shows: str
    models: tuple[str, ...]
    data: str
    metric: str
    budgets: str
    parts: tuple[Part, ...]
    open_: tuple[Open, ...] = ()
    departs: tuple[str, ...] = ()
    cannot: str = ""
    bring: tuple[str, ...] = ()
    calibrations: dict[str, Calibration] = field(default_factory=dict)

    @property
    def state(self) -> State:
        """How far it runs as its authors ran it."""
        if self.cannot:
            return "cannot"
        return "as far as the paper says" if self.unstated or self.departs else "as the paper"

    @property
    def unstated(self) -> tuple[Open, ...]:
        """All that is not said, each with what is taken."""
        models = tuple(
            Open(*MODELS[name].open_.split(": ", 1)) for name in self.models if MODELS[name].open_
        )
        return (*self.open_, *models, *self.paper.open_)

    def to_json(self, bring: Sequence[str]) -> dict[str, Any]:
        """What ``--list --json`` says of it."""
        return {
            "id": self.id,
            "paper": self.paper.name,
            "title": self.paper.title,
            "arxiv": self.paper.arxiv,
            "where": self.where,
            "shows": self.shows,
            "models": list(self.models),
            "data": self.data,
            "metric": self.metric,
            "budgets": self.budgets,
            "bring": list(bring),
            "state": self.state,
            "cannot": self.cannot,
            "departs": list(self.departs),
            "unstated": [one._asdict() for one in self.unstated],
            "specs": sorted({spec for part in self.parts for spec in part.specs()}),
        }


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A table that holds no result: settings, counts, examples. ``rows`` are its lines."""

    id: str
    paper: Paper
    where: str
    shows: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
