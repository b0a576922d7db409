"""What experiments end in: tables whose cells stand beside the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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
    """Cells beside the paper's figures. ``shrunk`` says what of it is smaller than in the paper,
    or empty.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    shrunk: tuple[str, ...] = ()
    kind: Literal["table"] = field(default="table", init=False)
