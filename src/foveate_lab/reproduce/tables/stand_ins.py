"""Tables and figures of a stand-in, which are not to be taken for the paper's model's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import singledispatch

from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.tables.table import Table, TableLine


@singledispatch
def as_stand_in(shown: Table, models: Sequence[str]) -> Table:
    """Name the stand-in in the place of the paper's models; compare no number with the paper's."""
    lines = tuple(_line(line, models) for line in shown.lines)
    return replace(shown, title=_named(shown.title, models), lines=lines)


@as_stand_in.register
def _(shown: Figure, models: Sequence[str]) -> Figure:
    return shown._replace(title=_named(shown.title, models))


def _line(line: TableLine, models: Sequence[str]) -> TableLine:
    cells = tuple(cell._replace(comparable=False) for cell in line.cells)
    return line._replace(model=_named(line.model, models), cells=cells)


def _named(text: str, models: Sequence[str]) -> str:
    """Put "stand-in for" before each name of a model, however it is capitalised."""
    names = "|".join(map(re.escape, sorted(models, key=len, reverse=True)))
    return re.sub(f"(?:{names})", r"stand-in for \g<0>", text, flags=re.IGNORECASE)
