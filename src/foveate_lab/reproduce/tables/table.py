"""Tables, the results of experiments, whose cells have the paper's figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Row = Mapping[str, Any]
Dimension = Literal["model", "method", "budget", "column", "group", "member"]
"""Dimensions that identify a cell; "group" and "member" are a method's name before and after
its last comma ("SnapKV, diversity")."""

NOT_BROUGHT = "not brought"  # begins the remark on a missing published file
OOM = "out of memory"  # a remark; the papers print "OOM"


def counted(samples: int) -> str:
    """Return a number of samples with its noun."""
    return f"{samples} sample" if samples == 1 else f"{samples} samples"


class TableCell(NamedTuple):
    """A measured number and the paper's; None where one is missing.

    ``samples`` is how many the number is of, beside ``refused`` ones; ``raised`` of them kept more
    than their budget. ``remark`` is any other note, such as why it is empty. ``printed`` is the
    paper's number as printed, or its word ("OOM"); ``misprint`` says what is known to be wrong with
    it; ``delta`` is the printed gain, where that is not the difference of the printed numbers.
    ``comparable``: False for a stand-in, whose numbers have nothing to do with the paper's.
    """

    measured: float | None
    paper: float | None
    remark: str = ""
    samples: int | None = None
    refused: int = 0
    raised: int = 0
    printed: str = ""
    misprint: str = ""
    delta: str = ""
    comparable: bool = True

    @property
    def difference(self) -> float | None:
        """Measured less the paper's; None where either is missing or they are not comparable."""
        if self.measured is None or self.paper is None or not self.comparable:
            return None
        return self.measured - self.paper

    @property
    def note(self) -> str:
        """Text of all notes on the measured number."""
        count = [counted(self.samples)] if self.samples is not None else []
        return ", ".join((*count, *self.exceptions))

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Notes that not every cell has: refusals, raised budgets, the remark."""
        notes = (
            f"{self.refused} refused" if self.refused else "",
            f"{self.raised} kept more than was asked: what is always kept" if self.raised else "",
            self.remark,
        )
        return tuple(filter(None, notes))


class TableLine(NamedTuple):
    """A line of a table; ``source`` is the line of the paper's text.

    ``over`` is the base method whose numbers are subtracted in the paper's line of gains;
    ``specs`` are the full specs with the benchmarks of each ("" for all of them).
    """

    model: str
    method: str
    budget: str
    spec: str
    source: str
    cells: tuple[TableCell, ...]
    over: str = ""
    specs: tuple[tuple[str, str], ...] = ()


class TableLayout(NamedTuple):
    """The paper's layout of a table: its blocks, lines and columns."""

    blocks: tuple[Dimension, ...]
    down: tuple[Dimension, ...]
    across: tuple[Dimension, ...]


METHODS_DOWN = TableLayout(("model",), ("method",), ("column",))
METHODS_ACROSS = TableLayout(("model",), ("column",), ("method",))
MODELS_ACROSS = TableLayout((), ("column",), ("model", "method"))
MEMBERS_DOWN = TableLayout(("model",), ("member",), ("column", "group"))
MEMBERS_ACROSS = TableLayout(("model",), ("group",), ("column", "member", "budget"))
BUDGETS_ACROSS = TableLayout(("model",), ("method",), ("column", "budget"))
BUDGETS_ONLY = TableLayout(("model",), ("column",), ("budget",))
BUDGET_BLOCKS = TableLayout(("model", "budget"), ("method",), ("column",))
BUDGETS_FIRST = TableLayout(("model",), ("budget", "method"), ("column",))
BUDGETS_LAST = TableLayout(("model",), ("method", "budget"), ("column",))
LAYOUTS = {
    "methods down": METHODS_DOWN,
    "methods across": METHODS_ACROSS,
    "models across": MODELS_ACROSS,
    "members down": MEMBERS_DOWN,
    "budgets across": BUDGETS_ACROSS,
    "budget blocks": BUDGET_BLOCKS,
    "budgets first": BUDGETS_FIRST,
    "budgets last": BUDGETS_LAST,
}


@dataclass(frozen=True)
class Table:
    """Cells beside the paper's figures. ``shrunk`` says what of it is smaller than in the paper, or
    empty. ``costs`` are columns of measured time and memory, which differ from run to run;
    ``aside`` are columns that the paper's table does not have. Without a ``layout`` methods run
    down, and budgets across where there are several.
    """

    title: str
    columns: tuple[str, ...]
    lines: tuple[TableLine, ...]
    shrunk: tuple[str, ...] = ()
    costs: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    layout: TableLayout | None = None
    kind: Literal["table"] = field(default="table", init=False)
