"""What a lab's rows show: one page, and the same numbers as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foveate.core import files
from foveate.eval.executors import versions
from foveate.report.analyses import Figure
from foveate.report.template import rendered
from foveate.reproduce.experiment import Experiment
from foveate.reproduce.lab import Lab
from foveate.reproduce.table import Cell, Line, Table

PAGE, NUMBERS = "reproduced.html", "reproduced.json"


class Outcome(NamedTuple):
    """An experiment's tables and figures."""

    experiment: Experiment
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]


def outcome(lab: Lab, experiment: Experiment) -> Outcome:
    """What there is of an experiment so far."""
    shown = list(experiment.trial.shown(lab.settings(experiment)))
    return Outcome(
        experiment,
        tuple(one for one in shown if isinstance(one, Table)),
        tuple(one for one in shown if isinstance(one, Figure)),
    )


def write(lab: Lab, outcomes: Sequence[Outcome]) -> Path:
    """Writes the page and the numbers beside the rows, and says where the page is.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
        MissingPackage: jinja2 or matplotlib is not installed.
    """
    path = lab.out / PAGE
    files.write(lab.out / NUMBERS, json.dumps(_numbers(lab, outcomes), indent=1) + "\n")
    files.write(
        path,
        rendered(
            "a page of reproductions",
            "reproduce.html.j2",
            small=lab.small,
            seed=lab.seed,
            versions=versions(),
            experiments=[_section(one) for one in outcomes],
        ),
    )
    return path


def _section(one: Outcome) -> dict[str, Any]:
    return {
        **one.experiment.to_json(()),
        "tables": [
            {
                "title": table.title,
                "shrunk": table.shrunk,
                "columns": table.columns,
                "lines": [_line(line) for line in table.lines],
            }
            for table in one.tables
        ],
        "figures": one.figures,
    }


def _line(line: Line) -> dict[str, Any]:
    return {**line._asdict(), "cells": [_cell(cell) for cell in line.cells]}


def _cell(cell: Cell) -> dict[str, str]:
    """In words: the paper's number as it prints it, the difference in as many digits."""
    paper, digits = "", 2
    if cell.paper is not None:
        paper = f"{cell.paper:g}"
        digits = len(paper.partition(".")[2])
        if cell.difference is not None and math.isfinite(cell.difference):
            paper += f" ({cell.difference:+.{digits}f})"
    return {"measured": _said(cell.measured, digits), "paper": paper, "note": cell.note}


def _said(value: float | None, digits: int) -> str:
    """With a digit more than the paper's, but for what is a whole number, as counts are."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "infinite"
    return f"{value:.0f}" if value == round(value) else f"{value:.{digits + 1}f}"


def _numbers(lab: Lab, outcomes: Iterable[Outcome]) -> dict[str, Any]:
    return {
        "stand_in": lab.small,
        "seed": lab.seed,
        "versions": versions(),
        "experiments": [
            {
                "id": one.experiment.id,
                "state": one.experiment.state,
                "times": list(one.experiment.trial.times()),
                "tables": [_plain(table) for table in one.tables],
                "figures": [figure.title for figure in one.figures],
            }
            for one in outcomes
        ],
    }


def _plain(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "shrunk": list(table.shrunk),
        "lines": [
            {
                **{key: value for key, value in line._asdict().items() if key != "cells"},
                "cells": {
                    column: {
                        "measured": _finite(cell.measured),
                        "paper": cell.paper,
                        "difference": _finite(cell.difference),
                        "note": cell.note,
                    }
                    for column, cell in zip(table.columns, line.cells, strict=True)
                },
            }
            for line in table.lines
        ],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
