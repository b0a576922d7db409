"""Lines and columns of a table of answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foveate_lab.reproduce.tables.table import Row


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A line of a table: its name in the paper, and its spec, with {B} for the budget and {NAME}
    for a profile.

    ``models`` are those that have it (all, if none is named); ``budgets`` replaces the table's.
    ``also`` are more arguments with some benchmarks, by model ("" for every one). ``raised`` are
    budgets of the paper's own tables that are less than what is always kept of some prompts.
    ``over`` names the arm that a line of gains below it compares with. ``values`` replaces the
    values of columns, by their names, in this line.
    """

    name: str
    spec: str
    over: str = ""
    models: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    also: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    raised: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    def spec_for(self, task: str, model: str) -> str:
        """Return the spec for a benchmark."""
        mine = self.also.get(task, {})
        more = mine.get(model, mine.get("", ""))
        return f"{self.spec}{',' if ':' in self.spec else ':'}{more}" if more else self.spec


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: a number over the answers to some benchmarks, or over the part of one whose
    ``label`` has a value of ``part``.
    """

    name: str
    tasks: tuple[str, ...]
    value: str = "percent"
    label: str = ""
    part: tuple[str, ...] = ()

    def matches(self, row: Row) -> bool:
        """Return whether a row of its benchmarks belongs to the column."""
        if not self.label:
            return True
        label_value = row.get("labels", {}).get(self.label)
        values = label_value if isinstance(label_value, list) else [label_value]
        return any(str(value) in self.part for value in values)


def columns(tasks: Mapping[str, str], value: str = "percent") -> tuple[Column, ...]:
    """Return a column for each benchmark, by the name that the paper gives it."""
    return tuple(Column(name=name, tasks=(task,), value=value) for name, task in tasks.items())
