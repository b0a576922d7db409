"""What experiments ended in as JSON takes it."""

from __future__ import annotations

import math
from typing import Any

from foveate.reproduce.experiment import Outcome
from foveate.reproduce.table import Table, TableCell, TableLine


def in_numbers(one: Outcome) -> dict[str, Any]:
    """An experiment's tables, cell by cell, and the titles of its figures."""
    return {
        "id": one.experiment.id,
        "state": one.experiment.state,
        "tables": [_table(table) for table in one.tables],
        "figures": [figure.title for figure in one.figures],
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "shrunk": list(table.shrunk),
        "lines": [_line(table, line) for line in table.lines],
    }


def _line(table: Table, line: TableLine) -> dict[str, Any]:
    said = {**line._asdict(), "specs": [{"spec": s, "tasks": t} for s, t in line.specs]}
    cells = zip(table.columns, line.cells, strict=True)
    return {**said, "cells": {name: _cell(cell, name in table.costs) for name, cell in cells}}


def _cell(cell: TableCell, cost: bool) -> dict[str, Any]:
    """``cost``: time or memory that was measured, which differs from run to run."""
    return {
        "measured": _finite(cell.measured),
        "paper": cell.paper,
        "printed": cell.printed,
        "misprint": cell.misprint,
        "difference": _finite(cell.difference),
        "samples": cell.samples,
        "refused": cell.refused,
        "raised": cell.raised,
        "note": cell.note,
        "cost": cost,
    }


def _finite(value: int | float | None) -> int | float | None:
    return value if value is not None and math.isfinite(value) else None
