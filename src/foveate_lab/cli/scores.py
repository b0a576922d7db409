"""Results of ``foveate eval`` as tables: one per task, one line per policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import RenderableType
from rich.text import Text

from foveate.cli import console, tables
from foveate.compression.labels import named
from foveate.errors import MissingPackage
from foveate_lab.eval.evaluation import Evaluation
from foveate_lab.eval.summary import Estimate, Failure, Rows, SummaryCell, cells

MOST = 24  # lines; a report has more room


def show_outcome(out: Path, result: Evaluation, closing: bool = True) -> None:
    """Print the number of answers, the scores, and refused samples; ``closing`` adds the next
    command.
    """
    rows, refused = result.rows, result.refused
    count = sum(failure.times for failure in refused)
    typer.echo(f"{out}: {len(rows) - count} answers" + (f", {count} refused" if count else ""))
    if raised := sum(bool(row.get("raised")) for row in rows):
        typer.echo(
            f"{raised} of them keep more than their budget: a minimum that their policies set.\n"
            "--strict refuses such budgets."
        )
    console.show(*scores(rows))
    if none_right := _tasks_without_right_answers(rows):
        typer.echo(
            f"\nNo answer is right, not even the full cache's: {', '.join(none_right)}. The model\n"
            "cannot do this task; only the column of same answers compares the policies."
        )
    if refused:
        console.show("", _refusals(rows, refused))
    if closing:
        typer.echo(f"\nNext: foveate report {out}")


def _tasks_without_right_answers(rows: Rows) -> list[str]:
    """Return the tasks in which all answers have a score, and all scores are 0."""
    by_task: dict[str, list[float | None]] = {}
    for row in rows:
        if "error" not in row:
            by_task.setdefault(row["task"], []).append(row["score"])
    return [task for task, task_scores in by_task.items() if set(task_scores) == {0}]


def _refusals(rows: Rows, refused: Sequence[Failure]) -> RenderableType:
    questions = Counter((row["task"], row["spec"]) for row in rows)
    return tables.table(
        refused,
        tables.column("Task", "task"),
        tables.column("Policy", lambda failure: tables.broken(tables.short(failure.spec))),
        tables.column("Refused", lambda f: f"{f.times} of {questions[f.task, f.spec]}"),
        tables.column("Sample", "sample"),
        tables.column("Why", "message"),
    )


def scores(rows: Rows) -> list[RenderableType]:
    """Return tables of mean scores with intervals, same answers and bytes, up to ``MOST`` lines."""
    answered = [row for row in rows if "error" not in row]
    try:
        table = cells(answered)
    except MissingPackage as error:
        return [Text(f"No scores are shown: {error}")]
    output: list[RenderableType] = []
    for task in dict.fromkeys(cell.task for cell in table[:MOST]):
        task_cells = [cell for cell in table[:MOST] if cell.task == task]
        output += ["", _table(task, task_cells)]
    if len(table) > MOST:
        output.append(Text(f"\n{len(table) - MOST} more lines are in the report."))
    return output


def _table(task: str, task_cells: Sequence[SummaryCell]) -> RenderableType:
    return tables.table(
        task_cells,
        tables.spec(task, lambda cell: named(cell.spec)[0], 26),
        tables.column("Budget", lambda cell: named(cell.spec)[1], none="-"),
        tables.number(
            "Score, 95 % interval", lambda cell: cell.score and interval(cell.score), none="none"
        ),
        tables.number("Same\nanswer", "same", ".0%", none="-"),
        tables.mib("KV\nMiB", "kv_bytes", ",.2f", none="-"),
        padding=tables.CLOSE,
    )


def interval(estimate: Estimate) -> str:
    """Format a mean with its interval: "0.90 (0.83 to 0.94)"."""
    return f"{estimate.mean:.2f} ({estimate.low:.2f} to {estimate.high:.2f})"
