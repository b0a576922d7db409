"""Contents of the pages of reproductions, ready for their templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import described
from foveate_lab.reproduce.experiment import Outcome
from foveate_lab.reproduce.tables.digits import difference, measured, of_paper
from foveate_lab.reproduce.tables.footnotes import Counts, Marks
from foveate_lab.reproduce.tables.laid_out import Laid, LaidRow, Placed, RowHeading
from foveate_lab.reproduce.tables.layout import lay_out
from foveate_lab.reproduce.tables.table import BUDGETS_LAST, Table

NARROW = 8  # most columns of a table that leaves room for a figure beside it

Held = Mapping[str, Sequence[Outcome]]
"""Outcomes by the heading of the paper's section."""


def paper(sections: Held, small: bool) -> dict[str, Any]:
    """Return the contents of a paper's page."""
    first = next(iter(sections.values()))[0].experiment.of
    return {
        "paper": first,
        "small": small,
        "settled": list(
            dict.fromkeys(
                note
                for mine in sections.values()
                for outcome in mine
                for note in outcome.experiment.settled
            )
        ),
        "sections": [
            {"heading": heading, "experiments": [_experiment(outcome) for outcome in mine]}
            for heading, mine in sections.items()
        ],
    }


def front(path: str, sections: Held) -> dict[str, Any]:
    """Return a paper's entry on the front: its page, and counts of what is on it."""
    outcomes = [outcome for mine in sections.values() for outcome in mine]
    cells = [
        cell
        for outcome in outcomes
        for table in outcome.tables
        for line in table.lines
        for cell in line.cells
    ]
    return {
        "path": path,
        "paper": outcomes[0].experiment.of,
        "experiments": [outcome.experiment for outcome in outcomes],
        "tables": sum(len(outcome.tables) for outcome in outcomes),
        "figures": sum(len(outcome.figures) for outcome in outcomes),
        "beside": sum(cell.difference is not None for cell in cells),
        "refused": sum(cell.refused for cell in cells),
    }


def _experiment(outcome: Outcome) -> dict[str, Any]:
    """Return an experiment's contents. ``beside``: its tables leave room for figures beside
    them.
    """
    tables = [table_content(table) for table in outcome.tables]
    return {
        **outcome.experiment.to_json(()),
        "tables": tables,
        "figures": [_figure(figure) for figure in outcome.figures],
        "beside": all(table["grid"]["width"] <= NARROW for table in tables),
    }


def _figure(figure: Figure) -> Figure:
    return figure._replace(svg=described(figure.svg, f"{figure.title}. {figure.caption}"))


def table_content(table: Table) -> dict[str, Any]:
    """Return a table as text, laid out as in the paper. Columns that the paper does not print are a
    table of their own: ``grid`` and ``aside``, each with heading rows, rows and notes below.
    """
    aside = replace(table, layout=BUDGETS_LAST)
    budgets = list(dict.fromkeys(line.budget for line in table.lines if line.budget))
    return {
        "title": table.title,
        "shrunk": table.shrunk,
        "budget": budgets[0] if len(budgets) == 1 else "",
        "grid": _grid(table, [name for name in table.columns if name not in table.aside]),
        "aside": _grid(aside, table.aside) if table.aside else None,
        "specs": list(_specs(table, budgets)),
    }


def _grid(table: Table, columns: Sequence[str]) -> dict[str, Any]:
    """Return rows of text and the notes below them. Counts include the columns of a printed
    mean.
    """
    grid, marks = lay_out(table, columns), Marks()
    counts = Counts(lay_out(table, table.columns).pieces)
    costs = [name for name in columns if name in table.costs]
    return {
        "names": grid.names,
        "heads": grid.heads,
        "rows": [_row(row, counts, marks) for row in grid.rows],
        "width": _width(grid),
        "sources": any(row.source for row in grid.rows if isinstance(row, LaidRow)),
        "counts": list(counts.sentences()),
        "costs": costs,
        "marks": marks.listed,
    }


def _width(grid: Laid) -> int:
    return len(grid.names) + sum(head.span for head in grid.heads[-1]) if grid.heads else 1


def _row(row: RowHeading | LaidRow, counts: Counts, marks: Marks) -> dict[str, Any]:
    if isinstance(row, RowHeading):
        return {"block": row.text}
    cells = [_cell(cell, counts, marks) for cell in row.cells]
    gain = any(cell.gain for cell in row.cells)
    return {"names": row.names, "cells": cells, "source": row.source, "gain": gain}


def _cell(placed: Placed, counts: Counts, marks: Marks) -> dict[str, Any]:
    """Return a cell's numbers as text, with marks at the measured and at the paper's number."""
    if placed.piece is None:
        return {"span": placed.span, "begins": placed.begins}
    _, _, cell, like = placed.piece
    notes = () if placed.gain else counts.exceptions(placed.piece.at["column"], cell)
    wrong = cell.misprint if placed.gain or not cell.delta else ""
    return {
        "span": placed.span,
        "begins": placed.begins,
        "measured": measured(cell, like, placed.gain),
        "mark": marks.of(*notes),
        "paper": of_paper(cell, placed.gain),
        "wrong": marks.of(wrong),
        "difference": "" if placed.gain else difference(cell),
    }


def _specs(table: Table, budgets: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each method with its full specs and the benchmarks of each; {B} is one of several
    budgets.
    """
    seen = set()
    for line in table.lines:
        for spec, tasks in line.specs:
            full_spec = spec.replace("{B}", budgets[0]) if len(budgets) == 1 else spec
            if (line.method, full_spec, tasks) not in seen:
                seen.add((line.method, full_spec, tasks))
                yield line.method, full_spec, tasks
