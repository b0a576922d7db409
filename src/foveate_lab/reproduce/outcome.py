"""Pages of a lab's results: one for each paper, a front, and the same numbers as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foveate.data import files
from foveate.loading.hardware import versions_of_results
from foveate.pictures.escaping import rendered, text_of
from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce.experiment import Experiment, Outcome
from foveate_lab.reproduce.pages import front, paper
from foveate_lab.reproduce.published_runs import compare_runs
from foveate_lab.reproduce.registry import PAPERS
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.tables.stand_ins import as_stand_in
from foveate_lab.reproduce.tables.table import Table, TableCell, TableLine

__all__ = ["NUMBERS", "PAGE", "Outcome", "outcome", "write"]

PAGE, NUMBERS = "reproduced.html", "reproduced.json"
WHAT = "a page of reproductions"
_TEMPLATE = "foveate_lab.report/reproduce.html.j2"
_FRONT = "foveate_lab.report/reproduced.html.j2"


def outcome(lab: Lab, experiment: Experiment) -> Outcome:
    """Return an experiment's tables and figures so far."""
    parts = list(experiment.trial.summarise(lab.settings(experiment)))
    if lab.published is not None:
        parts += compare_runs(lab.published, experiment, lab.settings(experiment))
    if lab.small:
        parts = [as_stand_in(part, experiment.models) for part in parts]
    return Outcome(
        experiment,
        tuple(part for part in parts if isinstance(part, Table)),
        tuple(part for part in parts if isinstance(part, Figure)),
    )


def write(lab: Lab, outcomes: Sequence[Outcome]) -> Path:
    """Write the pages and numbers beside the rows, and return the path of the front.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
        MissingPackage: jinja2 or matplotlib is not installed.
    """
    by_id = {outcome.experiment.id: outcome for outcome in outcomes}
    ran = {"stand_in": lab.small, "seed": lab.seed, "versions": versions_of_results()}
    record = {**ran, "experiments": [_in_numbers(outcome) for outcome in outcomes]}
    files.write(lab.out / NUMBERS, json.dumps(record, indent=1) + "\n")
    style: dict[str, Any] = {
        "style": text_of("foveate_lab.report/reproduce.css"),
        "front": PAGE,
        **ran,
    }
    fronts = []
    for name, reproduced in PAPERS.items():
        sections = reproduced.sections.items()
        by_heading = {heading: _of_section(by_id, name, ids) for heading, ids in sections}
        mine = {heading: found for heading, found in by_heading.items() if found}
        if not mine:
            continue
        path = f"{name}.html"
        page = rendered(WHAT, _TEMPLATE, **paper(mine, lab.small), **style)
        files.write(lab.out / path, page)
        fronts.append(front(path, mine))
    files.write(lab.out / PAGE, rendered(WHAT, _FRONT, papers=fronts, **style))
    return lab.out / PAGE


def _of_section(by_id: Mapping[str, Outcome], paper: str, ids: Sequence[str]) -> list[Outcome]:
    """Return the outcomes of a section's experiments."""
    return [by_id[f"{paper}:{id}"] for id in ids if f"{paper}:{id}" in by_id]


def _in_numbers(outcome: Outcome) -> dict[str, Any]:
    """Return an experiment's tables, cell by cell, and the titles of its figures."""
    return {
        "id": outcome.experiment.id,
        "state": outcome.experiment.state,
        "tables": [_table(table) for table in outcome.tables],
        "figures": [figure.title for figure in outcome.figures],
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "shrunk": list(table.shrunk),
        "lines": [_line(table, line) for line in table.lines],
    }


def _line(table: Table, line: TableLine) -> dict[str, Any]:
    entry = {**line._asdict(), "specs": [{"spec": s, "tasks": t} for s, t in line.specs]}
    cells = zip(table.columns, line.cells, strict=True)
    return {**entry, "cells": {name: _cell(cell, name in table.costs) for name, cell in cells}}


def _cell(cell: TableCell, cost: bool) -> dict[str, Any]:
    """Return a cell as JSON takes it. ``cost``: measured time or memory, which differs by run."""
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
