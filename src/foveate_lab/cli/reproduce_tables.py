"""``foveate reproduce --list``, ``--check`` and ``--plan``, and its facts: tables or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

import typer
from rich.text import Text

from foveate.cli import console, tables
from foveate.cli.findings import counted
from foveate.cli.tables import Column
from foveate_lab.cli.eval import REFUSED
from foveate_lab.cli.telling import said
from foveate_lab.reproduce import EXPERIMENTS, FACTS, find_experiments
from foveate_lab.reproduce.check import BenchmarkFolder, Checked
from foveate_lab.reproduce.experiment import Experiment, Outcome
from foveate_lab.reproduce.registry import list_requirements
from foveate_lab.reproduce.running.costs import Costs
from foveate_lab.reproduce.running.estimate import ModelEstimate

UNKNOWN = "unknown until the first answers"


def show_check(checked: Sequence[Checked], json: bool) -> None:
    """Show what was found. The exit code is 3 if something is missing or a set incomplete."""
    folders = {one.task: one for each in checked for one in each.folders}
    if json:
        console.print_json(
            {
                "data": [one.to_json() for one in folders.values()],
                "experiments": [
                    {
                        "id": one.experiment.id,
                        "tasks": [each.task for each in one.folders],
                        "missing": list(one.missing),
                        "incomplete": list(one.incomplete),
                        "unpublished": list(one.unpublished),
                    }
                    for one in checked
                ],
            }
        )
    else:
        _show_folders(list(folders.values()), checked)
    if not all(one.is_complete for one in checked):
        raise typer.Exit(REFUSED)


def _show_folders(folders: Sequence[BenchmarkFolder], checked: Sequence[Checked]) -> None:
    rows = (_part(one, i) for one in folders for i, _ in enumerate(one.parts or ()))
    console.show(tables.table(rows, "Data", "Form", "Split", "Count", "First"))
    for one in folders:
        if one.missing:
            console.show(Text(f"{one.task}: {one.missing}\n  {one.address}"))
    listed = ((each.experiment.id, _data(each)) for each in checked)
    console.show(tables.table(listed, "Experiment", "Data"))


def _part(folder: BenchmarkFolder, number: int) -> Sequence[str]:
    part = (folder.parts or ())[number]
    of = f" of {' or '.join(map(str, part.published))}" if part.incomplete else ""
    count = "missing" if part.missing else f"{part.questions}{of}"
    first = "" if number else folder.first
    return f"{folder.task} {part.name}".strip(), part.form, part.split, count, first


def _data(checked: Checked) -> str:
    lacks = {
        "missing": checked.missing,
        "not as many as published": checked.incomplete,
        "lines stay empty without published/": checked.unpublished,
    }
    if faults := [f"{what}: {', '.join(names)}" for what, names in lacks.items() if names]:
        return "; ".join(faults)
    return "all there" if checked.folders else "reads none"


_PLAN = (
    tables.column("Model", "model"),
    tables.column(
        "Asked",
        lambda one: one.task + (" (alone)" if one.alone and "timed" not in one.task else ""),
    ),
    Column("Prompts", "prompts", form=","),
    Column("Tokens", "tokens", form=",", none="?"),
    Column("Answers", "answers", form=","),
    Column("Time", lambda one: None if one.seconds is None else said(one.seconds), none="?"),
)


_ESTIMATES = (
    tables.column("Model", "model"),
    Column("Tokens", lambda one: round(one.tokens), form=","),
    Column("PFLOPs", lambda one: round(one.flops / 1e15), form=","),
    Column("Time", lambda one: " to ".join(map(said, one.seconds))),
    Column("GPU memory, GB", lambda one: math.ceil(one.memory), form=","),
    Column("Weights, GB", lambda one: round(one.weights, 1)),
)


def show_plan(costs: Costs, json: bool, devices: str) -> None:
    """Show what is left, set by set, and the prediction for devices ("8 x h100")."""
    if json:
        console.print_json(costs.to_json())
        return
    if costs.each:
        console.show(tables.table(costs.each, *_PLAN))
    typer.echo(summary(costs))
    if any(one.tokens for one in costs.estimates) and (costs.seconds is None or not costs.rows):
        _show_estimates(costs.estimates, devices)
    for name, why in costs.missing.items():
        typer.echo(f"{name}: {why}", err=True)


def _show_estimates(estimates: Sequence[ModelEstimate], devices: str) -> None:
    console.show(tables.table(estimates, *_ESTIMATES))
    low, high = (sum(one.seconds[end] for one in estimates) for end in (0, 1))
    typer.echo(
        f"Predicted for {devices}: {said(low)} to {said(high)}, without tables of time alone."
    )
    weights = sum(one.weights for one in estimates)
    data = {name: gb for one in estimates for name, gb in one.data.items()}
    if data:
        names = ", ".join(f"{name} {gb:g}" for name, gb in data.items())
        typer.echo(
            f"Downloads: about {weights:,.0f} GB of weights and {sum(data.values()):,.0f} GB of "
            f"data ({names})."
        )


def summary(costs: Costs) -> str:
    """The whole in two lines."""
    some = " as far as is known" if any(one.tokens is None for one in costs.each) else ""
    tokens = "" if costs.tokens is None else f", of about {costs.tokens:,} tokens{some},"
    what = (
        f"{costs.there:,} of {costs.rows:,} rows are there. Left: "
        f"{counted(costs.prompts, 'prompt')}{tokens} {counted(costs.answers, 'answer')}, "
        f"{counted(costs.profiles, 'profile')}."
    )
    if not costs.rows:
        return "No data is there: rows are predicted from the sizes of the published sets."
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


def counts(outcomes: Sequence[Outcome]) -> str:
    """Count what is on the page."""
    tables = [table for one in outcomes for table in one.tables]
    cells = [cell for table in tables for line in table.lines for cell in line.cells]
    beside = sum(cell.paper is not None and cell.measured is not None for cell in cells)
    counts = {
        "experiment": len(outcomes),
        "table": len(tables),
        "figure": sum(len(one.figures) for one in outcomes),
    }
    said = [counted(number, thing) for thing, number in counts.items() if number]
    return ", ".join([*said, *([f"{counted(beside, 'number')} beside the paper's"] * bool(beside))])


def show_list(names: Sequence[str], json: bool) -> None:
    """What there is; of these names, all about them."""
    experiments = find_experiments(names) if names else list(EXPERIMENTS.values())
    if json:
        held = [] if names else list(FACTS.values())
        console.print_json(
            {
                "experiments": [one.to_json(list_requirements(one)) for one in experiments],
                "facts": [
                    {
                        "id": one.id,
                        "paper": one.of.name,
                        "where": one.where,
                        "shows": one.shows,
                        "columns": list(one.columns),
                        "rows": [list(row) for row in one.rows],
                        "note": one.note,
                    }
                    for one in held
                ],
            }
        )
        return
    if names:
        for one in experiments:
            _show_experiment(one)
        return
    known = ((one.id, one.shows, one.state) for one in experiments)
    facts = ((fact.id, fact.shows, "facts") for fact in FACTS.values())
    console.show(tables.table((*known, *facts), "Id", "Shows", "State"))


def _show_experiment(one: Experiment) -> None:
    """All that is known of an experiment."""
    lines = [
        f"{one.id}: {one.of.name}, {one.where}",
        one.shows,
        f"models: {', '.join(one.models)}",
        f"data: {one.data}",
        f"metric: {one.metric}; budgets: {one.budgets}",
        "to bring:",
        *(f"  {what}" for what in list_requirements(one)),
        f"state: {one.state}",
        *((f"  {one.cannot}",) if one.cannot else ()),
        *(f"  {said}" for said in one.settled),
        *(f"  {open_.what}: {open_.choice}" for open_ in one.unstated),
        *(f"  differs: {what}" for what in one.departs),
        "where the paper, its code and Foveate differ:",
        *(f"  {what}" for what in one.of.differences),
    ]
    console.show(Text("\n".join(lines) + "\n"))


def show_facts(names: Sequence[str]) -> None:
    """Tables that hold no result."""
    for name in names:
        fact = FACTS[name]
        table = tables.table(fact.rows, *fact.columns)
        console.show(Text(f"{fact.of.name}, {fact.where}: {fact.shows}"), table)
        if fact.note:
            console.show(Text(fact.note))
