"""``foveate reproduce --plan``: what is left of a plan, and what it costs."""

from __future__ import annotations

import typer
from rich.text import Text

from foveate.cli import console
from foveate.cli.findings import counted
from foveate.cli.telling import said
from foveate.reproduce.costs import Costs

UNKNOWN = "unknown until the first answers"


def tell(costs: Costs, json: bool) -> None:
    """Shows it, set by set."""
    if json:
        console.print_json(costs.to_json())
        return
    table = console.table("Model", "Asked", "Prompts", "Tokens", "Answers", "Time")
    for one in costs.each:
        table.add_row(
            Text(one.model),
            Text(one.task + (" (alone)" if one.alone and "timed" not in one.task else "")),
            f"{one.prompts:,}",
            "?" if one.tokens is None else f"{one.tokens:,}",
            f"{one.answers:,}",
            "?" if one.seconds is None else said(one.seconds),
        )
    if costs.each:
        console.show(table)
    typer.echo(summary(costs))
    for name, why in costs.missing.items():
        typer.echo(f"{name}: {why}", err=True)


def summary(costs: Costs) -> str:
    """The whole in two lines."""
    some = " as far as is known" if any(one.tokens is None for one in costs.each) else ""
    tokens = "" if costs.tokens is None else f", of about {costs.tokens:,} tokens{some},"
    what = (
        f"{costs.there:,} of {costs.rows:,} rows are there. Left: "
        f"{counted(costs.prompts, 'prompt')}{tokens} {counted(costs.answers, 'answer')}, "
        f"{counted(costs.profiles, 'profile')}."
    )
    if not costs.each:
        return f"{costs.there:,} of {costs.rows:,} rows are there: nothing is left."
    if costs.seconds is None:
        return f"{what}\nTime: {UNKNOWN}."
    time = f"about {said(costs.seconds)} with {counted(costs.workers, 'worker')}"
    profiles = ", and what the profiles take" if costs.profiles else ""
    return f"{what}\nTime: {time}, at the rate of the rows that are there{profiles}."


def rest(costs: Costs) -> str:
    """What a merged folder still lacks."""
    if not costs.rows:
        return "Without data nothing says which rows are still missing."
    left = costs.rows - costs.there
    said = f"{costs.there:,} of {costs.rows:,} rows are there"
    return f"{said}; the same command without --merge asks the others." if left else f"{said}."
