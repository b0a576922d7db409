"""``foveate reproduce``: a table or figure of a paper, beside what the paper says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from foveate.cli import console, options, reproduce_check
from foveate.cli.eval import REFUSED
from foveate.cli.findings import counted, of_page
from foveate.cli.telling import Teller
from foveate.errors import InvalidInput
from foveate.eval.judge import find_judge
from foveate.reproduce import EXPERIMENTS, FACTS, find_experiments
from foveate.reproduce.check import check
from foveate.reproduce.experiment import Experiment
from foveate.reproduce.lab import Lab
from foveate.reproduce.outcome import Outcome, outcome, write
from foveate.reproduce.perform import perform
from foveate.reproduce.registry import brought, folders
from foveate.reproduce.stand_in import judge as stand_in_judge
from foveate.reproduce.stand_in import write as write_data

ALL = 10_000_000  # samples of each benchmark


def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...",
            help="mixkv:table1, or csp for all of that paper, or all.",
            show_default=False,
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Only say what there is; with ids, all about those.")
    ] = False,
    checked: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="DIR",
            help="Only say what this folder holds of the data, without a model.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PLACE",
            help="A directory or hub id; repeatable. [default: all of the paper's, from the hub]",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Holds a folder for each benchmark.")
    ] = Path("data"),
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where rows, profiles and the page go.")
    ] = Path("reproduced"),
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Samples of each benchmark. [default: all]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the samples.")] = 0,
    judge: Annotated[
        str | None,
        typer.Option(metavar="MODULE:CALLABLE", help="A language model: a prompt in, text out."),
    ] = None,
    stand_in: Annotated[
        bool,
        typer.Option(
            "--stand-in", help="A small model on generated data: shows that all of it runs."
        ),
    ] = False,
    allow_outside: options.Outside = False,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
    json: console.Json = False,
) -> None:
    """Run the experiments of the five papers, and set every number beside the paper's.

    What is in --out already is gone on with. The exit code is 3 if something was refused.
    """
    names = ids or []
    if checked is not None:
        found = check(find_experiments(names or ["all"]), checked, outside=allow_outside)
        reproduce_check.tell(list(found), json)
        return
    if listed or not names:
        _list(names, json)
        return
    if names == [one for one in names if one in FACTS]:
        _facts(names)
        return
    if stand_in and (model or judge or device_map):
        raise InvalidInput(
            "--stand-in brings a model and data of its own: leave out --model, --judge and "
            "--device-map."
        )
    experiments = find_experiments(names)
    lab = Lab(
        experiments,
        out=out,
        data=out / "data" if stand_in else data,
        models=model or (),
        limit=limit or (2 if stand_in else ALL),
        seed=seed,
        small=stand_in,
        judge=stand_in_judge if stand_in else find_judge(judge) if judge else None,
        outside=allow_outside,
        trust_remote_code=trust_remote_code,
        device_map=device_map,
    )
    if stand_in:
        needed = dict.fromkeys(name for one in experiments for name in folders(one))
        write_data(lab.data, lab.limit, needed)
    with lab:
        _perform(lab, json)


def _perform(lab: Lab, json: bool) -> None:
    """Runs them one after the other, and writes the page."""
    with console.progress(hidden=json, lines=False) as bars:  # it has lines of its own
        done = perform(lab, Teller(bars, quiet=json))
    shown = [outcome(lab, one) for one in lab.experiments if one.id not in done.missing]
    page = write(lab, shown)
    lab.seal()
    typer.echo(of_page(page, _held(shown)))
    for name, why in done.missing.items():
        typer.echo(f"{name}: {why}", err=True)
    for name, why in done.left_out.items():
        typer.echo(f"{name} is left out: {why}", err=True)
    if done.refused or done.missing or done.left_out:
        counted = f"{len(done.refused)} answers refused, {len(done.missing)} experiments not run"
        typer.echo(counted, err=True)
        raise typer.Exit(REFUSED)


def _held(shown: Sequence[Outcome]) -> str:
    """What the page has."""
    tables = [table for one in shown for table in one.tables]
    cells = [cell for table in tables for line in table.lines for cell in line.cells]
    beside = sum(cell.paper is not None and cell.measured is not None for cell in cells)
    found = {
        "experiment": len(shown),
        "table": len(tables),
        "figure": sum(len(one.figures) for one in shown),
    }
    said = [counted(number, thing) for thing, number in found.items() if number]
    return ", ".join([*said, *([f"{counted(beside, 'number')} beside the paper's"] * bool(beside))])


def _list(names: Sequence[str], json: bool) -> None:
    experiments = find_experiments(names) if names else list(EXPERIMENTS.values())
    if json:
        facts = [] if names else list(FACTS.values())
        console.print_json(
            {
                "experiments": [one.to_json(brought(one)) for one in experiments],
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
                    for one in facts
                ],
            }
        )
        return
    if names:
        for one in experiments:
            _tell(one)
        return
    table = console.table("Id", "Shows", "State")
    for one in experiments:
        table.add_row(one.id, Text(one.shows), one.state)
    for fact in FACTS.values():
        table.add_row(fact.id, Text(fact.shows), "facts")
    console.show(table)


def _tell(one: Experiment) -> None:
    """All that is known of an experiment."""
    lines = [
        f"{one.id}: {one.of.name}, {one.where}",
        one.shows,
        f"models: {', '.join(one.models)}",
        f"data: {one.data}",
        f"metric: {one.metric}; budgets: {one.budgets}",
        "to bring:",
        *(f"  {what}" for what in brought(one)),
        f"state: {one.state}",
        *((f"  {one.cannot}",) if one.cannot else ()),
        *(f"  {said}" for said in one.settled),
        *(f"  {open_.what}: {open_.choice}" for open_ in one.unstated),
        *(f"  differs: {what}" for what in one.departs),
        "where the paper, its code and Foveate differ:",
        *(f"  {what}" for what in one.of.differences),
    ]
    console.show(Text("\n".join(lines) + "\n"))


def _facts(names: Sequence[str]) -> None:
    for name in names:
        fact = FACTS[name]
        table = console.table(*fact.columns)
        for row in fact.rows:
            table.add_row(*map(Text, row))
        console.show(Text(f"{fact.of.name}, {fact.where}: {fact.shows}"), table)
        if fact.note:
            console.show(Text(fact.note))
