"""Marking of a stand-in's tables and figures, which say nothing about the paper's model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.tables.table import Table, TableLine


def as_stand_in(result: Table | Figure, models: Sequence[str]) -> Table | Figure:
    """Name the stand-in instead of the paper's models, and compare no number with the paper's."""
    title = _named(result.title, models)
    if isinstance(result, Figure):
        return result._replace(title=title)
    return replace(result, title=title, lines=tuple(_line(line, models) for line in result.lines))


def _line(line: TableLine, models: Sequence[str]) -> TableLine:
    cells = tuple(cell._replace(comparable=False) for cell in line.cells)
    return line._replace(model=_named(line.model, models), cells=cells)


def _named(text: str, models: Sequence[str]) -> str:
    """Put "stand-in for" before each name of a model, in any capitalisation."""
    names = "|".join(map(re.escape, sorted(models, key=len, reverse=True)))
    return re.sub(f"(?:{names})", r"stand-in for \g<0>", text, flags=re.IGNORECASE)
