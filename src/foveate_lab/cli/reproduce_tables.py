"""Output of ``foveate reproduce --list``, ``--check``, ``--plan`` and of facts: tables or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

import typer
from rich.text import Text

from foveate.cli import console, tables
from foveate.cli.findings import counted
from foveate.cli.tables import Column
from foveate_lab.cli.eval import REFUSED
from foveate_lab.cli.progress import duration
from foveate_lab.reproduce import EXPERIMENTS, FACTS, find_experiments
from foveate_lab.reproduce.check import BenchmarkFolder, Checked
from foveate_lab.reproduce.experiment import Experiment, Outcome
from foveate_lab.reproduce.registry import list_requirements
from foveate_lab.reproduce.running.costs import Costs
from foveate_lab.reproduce.running.estimate import ModelEstimate

UNKNOWN = "unknown until the first answers"


def show_check(checked: Sequence[Checked], json: bool) -> None:
    """Print the findings of --check. The exit code is 3 if data are missing or incomplete."""
    folders = {folder.task: folder for check in checked for folder in check.folders}
    if json:
        console.print_json(
            {
                "data": [folder.to_json() for folder in folders.values()],
                "experiments": [
                    {
                        "id": check.experiment.id,
                        "tasks": [folder.task for folder in check.folders],
                        "missing": list(check.missing),
                        "incomplete": list(check.incomplete),
                        "unpublished": list(check.unpublished),
                    }
                    for check in checked
                ],
            }
        )
    else:
        _show_folders(list(folders.values()), checked)
    if not all(check.is_complete for check in checked):
        raise typer.Exit(REFUSED)


def _show_folders(folders: Sequence[BenchmarkFolder], checked: Sequence[Checked]) -> None:
    rows = (_part(folder, i) for folder in folders for i, _ in enumerate(folder.parts or ()))
    console.show(tables.table(rows, "Data", "Form", "Split", "Count", "First"))
    for folder in folders:
        if folder.missing:
            console.show(Text(f"{folder.task}: {folder.missing}\n  {folder.address}"))
    listed = ((check.experiment.id, _data(check)) for check in checked)
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
    if faults := [f"{fault}: {', '.join(names)}" for fault, names in lacks.items() if names]:
        return "; ".join(faults)
    return "all there" if checked.folders else "reads none"


_PLAN = (
    tables.column("Model", "model"),
    tables.column(
        "Asked",
        lambda cost: cost.task + (" (alone)" if cost.alone and "timed" not in cost.task else ""),
    ),
    Column("Prompts", "prompts", form=","),
    Column("Tokens", "tokens", form=",", none="?"),
    Column("Answers", "answers", form=","),
    Column("Time", lambda cost: None if cost.seconds is None else duration(cost.seconds), none="?"),
)


_ESTIMATES = (
    tables.column("Model", "model"),
    Column("Tokens", lambda estimate: round(estimate.tokens), form=","),
    Column("PFLOPs", lambda estimate: round(estimate.flops / 1e15), form=","),
    Column("Time", lambda estimate: " to ".join(map(duration, estimate.seconds))),
    Column("GPU memory, GB", lambda estimate: math.ceil(estimate.memory), form=","),
    Column("Weights, GB", lambda estimate: round(estimate.weights, 1)),
)


def show_plan(costs: Costs, json: bool, devices: str) -> None:
    """Show what is left, set by set, and the prediction for devices ("8 x h100")."""
    if json:
        console.print_json(costs.to_json())
        return
    if costs.each:
        console.show(tables.table(costs.each, *_PLAN))
    typer.echo(summary(costs))
    has_tokens = any(estimate.tokens for estimate in costs.estimates)
    if has_tokens and (costs.seconds is None or not costs.rows):
        _show_estimates(costs.estimates, devices)
    for name, why in costs.missing.items():
        typer.echo(f"{name}: {why}", err=True)


def _show_estimates(estimates: Sequence[ModelEstimate], devices: str) -> None:
    console.show(tables.table(estimates, *_ESTIMATES))
    low, high = (sum(estimate.seconds[end] for estimate in estimates) for end in (0, 1))
    typer.echo(
        f"Predicted for {devices}: {duration(low)} to {duration(high)}, "
        "without tables of time alone."
    )
    weights = sum(estimate.weights for estimate in estimates)
    data = {name: gb for estimate in estimates for name, gb in estimate.data.items()}
    if data:
        names = ", ".join(f"{name} {gb:g}" for name, gb in data.items())
        typer.echo(
            f"Downloads: about {weights:,.0f} GB of weights and {sum(data.values()):,.0f} GB of "
            f"data ({names})."
        )


def summary(costs: Costs) -> str:
    """Summarize the plan in two lines."""
    some = " as far as is known" if any(cost.tokens is None for cost in costs.each) else ""
    tokens = "" if costs.tokens is None else f", of about {costs.tokens:,} tokens{some},"
    left = (
        f"{costs.there:,} of {costs.rows:,} rows are there. Left: "
        f"{counted(costs.prompts, 'prompt')}{tokens} {counted(costs.answers, 'answer')}, "
        f"{counted(costs.profiles, 'profile')}."
    )
    if not costs.rows:
        return "No data is there: rows are predicted from the sizes of the published sets."
    if not costs.each:
        return f"{costs.there:,} of {costs.rows:,} rows are there: nothing is left."
    if costs.seconds is None:
        return f"{left}\nTime: {UNKNOWN}."
    time = f"about {duration(costs.seconds)} with {counted(costs.workers, 'worker')}"
    profiles = ", and what the profiles take" if costs.profiles else ""
    return f"{left}\nTime: {time}, at the rate of the rows that are there{profiles}."


def rest(costs: Costs) -> str:
    """Describe what a merged folder still lacks."""
    if not costs.rows:
        return "Without data nothing says which rows are still missing."
    left = costs.rows - costs.there
    counts = f"{costs.there:,} of {costs.rows:,} rows are there"
    return f"{counts}; the same command without --merge asks the others." if left else f"{counts}."


def counts(outcomes: Sequence[Outcome]) -> str:
    """Count experiments, tables, figures and compared numbers on the page."""
    tables = [table for outcome in outcomes for table in outcome.tables]
    cells = [cell for table in tables for line in table.lines for cell in line.cells]
    beside = sum(cell.paper is not None and cell.measured is not None for cell in cells)
    counts = {
        "experiment": len(outcomes),
        "table": len(tables),
        "figure": sum(len(outcome.figures) for outcome in outcomes),
    }
    texts = [counted(number, thing) for thing, number in counts.items() if number]
    return ", ".join(
        [*texts, *([f"{counted(beside, 'number')} beside the paper's"] * bool(beside))]
    )


def show_list(names: Sequence[str], json: bool) -> None:
    """Print all experiments and facts; with names, the details of those experiments."""
    experiments = find_experiments(names) if names else list(EXPERIMENTS.values())
    if json:
        shown_facts = [] if names else list(FACTS.values())
        console.print_json(
            {
                "experiments": [
                    experiment.to_json(list_requirements(experiment)) for experiment in experiments
                ],
                "facts": [
                    {
                        "id": fact.id,
                        "paper": fact.of.name,
                        "where": fact.where,
                        "shows": fact.shows,
                        "columns": list(fact.columns),
                        "rows": [list(row) for row in fact.rows],
                        "note": fact.note,
                    }
                    for fact in shown_facts
                ],
            }
        )
        return
    if names:
        for experiment in experiments:
            _show_experiment(experiment)
        return
    known = ((experiment.id, experiment.shows, experiment.state) for experiment in experiments)
    facts = ((fact.id, fact.shows, "facts") for fact in FACTS.values())
    console.show(tables.table((*known, *facts), "Id", "Shows", "State"))


def _show_experiment(experiment: Experiment) -> None:
    """Print everything that is known of an experiment."""
    lines = [
        f"{experiment.id}: {experiment.of.name}, {experiment.where}",
        experiment.shows,
        f"models: {', '.join(experiment.models)}",
        f"data: {experiment.data}",
        f"metric: {experiment.metric}; budgets: {experiment.budgets}",
        "to bring:",
        *(f"  {what}" for what in list_requirements(experiment)),
        f"state: {experiment.state}",
        *((f"  {experiment.cannot}",) if experiment.cannot else ()),
        *(f"  {setting}" for setting in experiment.settled),
        *(f"  {open_.what}: {open_.choice}" for open_ in experiment.unstated),
        *(f"  differs: {what}" for what in experiment.departs),
        "where the paper, its code and Foveate differ:",
        *(f"  {what}" for what in experiment.of.differences),
    ]
    console.show(Text("\n".join(lines) + "\n"))


def show_facts(names: Sequence[str]) -> None:
    """Print tables of a paper that hold no result."""
    for name in names:
        fact = FACTS[name]
        table = tables.table(fact.rows, *fact.columns)
        console.show(Text(f"{fact.of.name}, {fact.where}: {fact.shows}"), table)
        if fact.note:
            console.show(Text(fact.note))
