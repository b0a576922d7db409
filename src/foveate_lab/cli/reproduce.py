"""``foveate reproduce``: a table or figure of a paper, beside what the paper says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from foveate.cli import console, options
from foveate.cli.findings import counted, of_page
from foveate.cli.outputs import check_folder
from foveate.errors import InvalidInput, InvalidParameter
from foveate_lab.cli import reproduce_tables
from foveate_lab.cli.eval import REFUSED
from foveate_lab.cli.options import Batch, Executor, Workers
from foveate_lab.cli.telling import Teller
from foveate_lab.eval.executors import find_executor
from foveate_lab.eval.judge import find_judge
from foveate_lab.reproduce import FACTS, find_experiments
from foveate_lab.reproduce.ask import Part
from foveate_lab.reproduce.check import check
from foveate_lab.reproduce.outcome import Outcome, outcome, write
from foveate_lab.reproduce.registry import folders
from foveate_lab.reproduce.running.costs import costs
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.running.merge import merge
from foveate_lab.reproduce.running.perform import perform
from foveate_lab.reproduce.running.progress import Done
from foveate_lab.reproduce.stand_in import judge as stand_in_judge
from foveate_lab.reproduce.stand_in import write as write_data

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
    executor: Executor = "local",
    workers: Workers = None,
    batch: Batch = 1,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="K/N", help="Ask part K of N: every Nth sample or batch.", show_default=False
        ),
    ] = None,
    merged: Annotated[
        list[Path] | None,
        typer.Option(
            "--merge",
            metavar="DIR",
            help="Ask nothing: put the rows of this folder into --out; repeatable.",
            show_default=False,
        ),
    ] = None,
    planned: Annotated[
        bool, typer.Option("--plan", "--dry-run", help="Only say what is left, and what it costs.")
    ] = False,
    json: console.Json = False,
) -> None:
    """Run the experiments of the five papers, and set every number beside the paper's.

    What is in --out already is gone on with. The exit code is 3 if something was refused.
    """
    names = ids or []
    if checked is not None:
        checks = check(find_experiments(names or ["all"]), checked, outside=allow_outside)
        reproduce_tables.show_check(list(checks), json)
        return
    if not names and (merged or planned):
        raise InvalidInput("--merge and --plan are of experiments: give their ids, or all.")
    if listed or not names:
        reproduce_tables.show_list(names, json)
        return
    if names == [one for one in names if one in FACTS]:
        reproduce_tables.show_facts(names)
        return
    if stand_in and (model or judge or device_map):
        raise InvalidInput(
            "--stand-in brings a model and data of its own: leave out --model, --judge and "
            "--device-map."
        )
    if not planned:
        check_folder("--out", out)
    find_executor(executor, "", "query-aware", workers, device_map=device_map)  # if it can be had
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
        executor=executor,
        workers=workers,
        part=_part(part, batch),
        read_only=planned,
    )
    if stand_in:
        needed = dict.fromkeys(name for one in experiments for name in folders(one))
        write_data(lab.data, lab.limit, needed)
    if planned:
        with console.progress(hidden=json, lines=False):  # what loads a model is quiet
            left = costs(lab)
        reproduce_tables.show_plan(left, json)
        return
    with lab:
        if merged:
            _merge(lab, merged)
        else:
            _perform(lab, json)


def _part(said: str | None, batch: int) -> Part:
    """Which part of the samples is asked, in batches; all, where nothing is said."""
    if said is None:
        return Part(batch=batch)
    match = re.fullmatch(r"(\d+)/(\d+)", said)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise InvalidParameter(f"--part {said!r}: give K/N with K from 1 to N, such as 1/2.")
    return Part(int(match[1]), int(match[2]), batch)


def _merge(lab: Lab, folders: Sequence[Path]) -> None:
    """Puts the rows of other folders into this one, and writes the page."""
    merge(lab, folders)
    lab.rows.sort()
    _write(lab, Done())
    typer.echo(reproduce_tables.rest(costs(lab)), err=True)


def _perform(lab: Lab, json: bool) -> None:
    """Runs them one after the other, and writes the page."""
    with console.progress(hidden=json, lines=False) as bars:  # it has lines of its own
        if not json:
            typer.echo(reproduce_tables.summary(costs(lab)), err=True)
        done = perform(lab, Teller(bars, quiet=json))
    _write(lab, done)
    for name, why in done.missing.items():
        typer.echo(f"{name}: {why}", err=True)
    for name, why in done.left_out.items():
        typer.echo(f"{name} is left out: {why}", err=True)
    if done.refused or done.missing or done.left_out:
        counted = f"{len(done.refused)} answers refused, {len(done.missing)} experiments not run"
        typer.echo(counted, err=True)
        raise typer.Exit(REFUSED)


def _write(lab: Lab, done: Done) -> None:
    """The page of what there is, and the manifests of the rows."""
    shown = [outcome(lab, one) for one in lab.experiments if one.id not in done.missing]
    page = write(lab, shown)
    lab.seal()
    typer.echo(of_page(page, _held(shown)))


def _held(shown: Sequence[Outcome]) -> str:
    """What the page has."""
    tables = [table for one in shown for table in one.tables]
    cells = [cell for table in tables for line in table.lines for cell in line.cells]
    beside = sum(cell.paper is not None and cell.measured is not None for cell in cells)
    held = {
        "experiment": len(shown),
        "table": len(tables),
        "figure": sum(len(one.figures) for one in shown),
    }
    said = [counted(number, thing) for thing, number in held.items() if number]
    return ", ".join([*said, *([f"{counted(beside, 'number')} beside the paper's"] * bool(beside))])
