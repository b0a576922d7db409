"""``foveate reproduce --plan``: what is left of a plan, and what it costs."""

from __future__ import annotations

import typer
from rich.text import Text

from foveate.cli import console
from foveate.cli.findings import counted
from foveate.cli.telling import said
from foveate.reproduce.costs import Costs

UNKNOWN = "unknown until the first answers"


def tell(found: Costs, json: bool) -> None:
    """Shows it, set by set."""
    if json:
        console.print_json(found.to_json())
        return
    table = console.table("Model", "Asked", "Prompts", "Tokens", "Answers", "Time")
    for one in found.each:
        table.add_row(
            Text(one.model),
            Text(one.task + (" (alone)" if one.alone and "timed" not in one.task else "")),
            f"{one.prompts:,}",
            "?" if one.tokens is None else f"{one.tokens:,}",
            f"{one.answers:,}",
            "?" if one.seconds is None else said(one.seconds),
        )
    if found.each:
        console.show(table)
    typer.echo(summary(found))
    for name, why in found.missing.items():
        typer.echo(f"{name}: {why}", err=True)


def summary(found: Costs) -> str:
    """The whole in two lines."""
    some = " as far as is known" if any(one.tokens is None for one in found.each) else ""
    tokens = "" if found.tokens is None else f", of about {found.tokens:,} tokens{some},"
    what = (
        f"{found.there:,} of {found.rows:,} rows are there. Left: "
        f"{counted(found.prompts, 'prompt')}{tokens} {counted(found.answers, 'answer')}, "
        f"{counted(found.profiles, 'profile')}."
    )
    if not found.each:
        return f"{found.there:,} of {found.rows:,} rows are there: nothing is left."
    if found.seconds is None:
        return f"{what}\nTime: {UNKNOWN}."
    time = f"about {said(found.seconds)} with {counted(found.workers, 'worker')}"
    profiles = ", and what the profiles take" if found.profiles else ""
    return f"{what}\nTime: {time}, at the rate of the rows that are there{profiles}."


def rest(found: Costs) -> str:
    """What a merged folder still lacks."""
    if not found.rows:
        return "Without data nothing says which rows are still missing."
    left = found.rows - found.there
    said = f"{found.there:,} of {found.rows:,} rows are there"
    return f"{said}; the same command without --merge asks the others." if left else f"{said}."
