"""What an experiment is made of: rows to be had, and tables and figures to be made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from foveate.report.analyses import Figure
from foveate.reproduce.ask import Asked
from foveate.reproduce.setting import Setting

Row = Mapping[str, Any]


class Cell(NamedTuple):
    """What was measured, and what the paper says; None where there is none. ``note`` says why, or
    of how few samples it is.
    """

    measured: float | None
    paper: float | None
    note: str = ""

    @property
    def difference(self) -> float | None:
        """Measured less the paper's."""
        if self.measured is None or self.paper is None:
            return None
        return self.measured - self.paper


class Line(NamedTuple):
    """A line of a table; ``source`` is that of the paper's text."""

    model: str
    method: str
    budget: str
    spec: str
    source: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Cells beside the paper's figures. ``shrunk`` says what of it is smaller than in the paper."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    shrunk: tuple[str, ...] = ()
    kind: Literal["table"] = field(default="table", init=False)


@runtime_checkable
class Part(Protocol):
    """Something that is run with one model after the other."""

    @property
    def models(self) -> tuple[str, ...]:
        """Those that it is run with."""

    def tasks(self) -> Sequence[str]:
        """The benchmarks that it reads."""

    def specs(self) -> Sequence[str]:
        """Its policies, with their budgets and profiles left open."""

    def asks(self, setting: Setting) -> Asked:
        """The answers among what it needs: others may be asked of the same prompts along."""

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """The rows that are missing, one after the other."""

    def shown(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        """What the rows so far show."""
