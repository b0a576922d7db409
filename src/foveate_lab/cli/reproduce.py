"""``foveate reproduce``: tables and figures of papers, beside the published ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import console, options
from foveate.cli.options import check_folder
from foveate.errors import InvalidInput, InvalidParameter
from foveate_lab.cli.options import Batch, Executor, JudgeName, Workers

if TYPE_CHECKING:
    from foveate_lab.reproduce import Options
    from foveate_lab.reproduce.running.costs import Costs
    from foveate_lab.reproduce.task_request import Part


def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID...",
            help="Experiments to run, e.g. mixkv:table1, csp (all of that paper) or all.",
            show_default=False,
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the experiments; with ids, show their details.")
    ] = False,
    checked: Annotated[
        Path | None,
        typer.Option(
            "--check",
            metavar="DIR",
            help="Folder whose data to check, without a model, e.g. data.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PLACE",
            help="Model directory or hub id, e.g. llava-1.5-7b=/models/llava; repeatable. "
            "[default: all of the paper's, from the hub]",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder with a subfolder per benchmark, e.g. data.")
    ] = Path("data"),
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for rows, profiles and the page, e.g. out.")
    ] = Path("reproduced"),
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of samples per benchmark, e.g. 100. [default: all]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Random seed for sample selection, e.g. 1.")
    ] = 0,
    judge: JudgeName = None,
    stand_in: Annotated[
        bool,
        typer.Option(
            "--stand-in", help="Small model on generated data, to check that everything runs."
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
            metavar="K/N",
            help="Part of the samples to answer, e.g. 1/4: every fourth sample or batch.",
            show_default=False,
        ),
    ] = None,
    merged: Annotated[
        list[Path] | None,
        typer.Option(
            "--merge",
            metavar="DIR",
            help="Folder whose rows to merge into --out without answering, e.g. part2; repeatable.",
            show_default=False,
        ),
    ] = None,
    published: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Copy of a paper's repository, whose published runs are compared, e.g. CSP.",
            show_default=False,
        ),
    ] = None,
    planned: Annotated[
        bool, typer.Option("--plan", "--dry-run", help="Show what is left, and its cost.")
    ] = False,
    gpu: Annotated[
        str, typer.Option(metavar="NAME", help="GPU that --plan predicts for, e.g. h100.")
    ] = "a100-80gb",
    gpus: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Number of GPUs for --plan to predict, e.g. 8."),
    ] = 1,
    json: console.Json = False,
) -> None:
    """Run the experiments of the five papers, and set every number beside the paper's.

    Results in --out are continued. The exit code is 3 if something was refused.
    """
    from foveate.cli.findings import of_page
    from foveate_lab.cli import reproduce_tables
    from foveate_lab.eval.judge import find_judge
    from foveate_lab.reproduce import FACTS, find_experiments, merge, plan
    from foveate_lab.reproduce.check import check

    names = ids or []
    if checked is not None:
        checks = check(find_experiments(names or ["all"]), checked, outside=allow_outside)
        reproduce_tables.show_check(list(checks), json)
        return
    if not names and (merged or planned):
        raise InvalidInput("--merge and --plan need experiments: give their ids, or all.")
    if listed or not names:
        reproduce_tables.show_list(names, json)
        return
    if names == [name for name in names if name in FACTS]:
        reproduce_tables.show_facts(names)
        return
    if stand_in and (model or judge or device_map):
        raise InvalidInput(
            "--stand-in brings a model and data of its own: leave out --model, --judge and "
            "--device-map."
        )
    if not planned:
        check_folder("--out", out)
    settings: Options = {
        "out": out,
        "data": data,
        "models": model or (),
        "limit": limit,
        "seed": seed,
        "judge": find_judge(judge) if judge else None,
        "stand_in": stand_in,
        "allow_outside": allow_outside,
        "trust_remote_code": trust_remote_code,
        "device_map": device_map,
        "executor": executor,
        "workers": workers,
        "part": _part(part, batch),
        "published": published,
    }
    if planned:
        with console.progress(hidden=json, lines=False):  # what loads a model is quiet
            left = plan(names, gpu=gpu, gpus=gpus, **settings)
        reproduce_tables.show_plan(left, json, f"{gpus} x {gpu}")
    elif merged:
        result, costs = merge(names, merged, **settings)
        typer.echo(of_page(result.page, reproduce_tables.counts(result.outcomes)))
        typer.echo(reproduce_tables.rest(costs), err=True)
    else:
        _run(names, settings, json)


def _part(text: str | None, batch: int) -> Part:
    """Parse --part, for example 1/2; without it, one part with all samples."""
    from foveate_lab.reproduce.task_request import Part

    if text is None:
        return Part(batch=batch)
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise InvalidParameter(f"--part {text!r}: give K/N with K from 1 to N, such as 1/2.")
    return Part(int(match[1]), int(match[2]), batch)


def _run(names: Sequence[str], settings: Options, json: bool) -> None:
    """Run the experiments, then print a summary of the page and of what was left out."""
    from foveate.cli.findings import of_page
    from foveate_lab.cli import reproduce_tables
    from foveate_lab.cli.eval import REFUSED
    from foveate_lab.cli.progress import Teller
    from foveate_lab.reproduce import run

    with console.progress(hidden=json, lines=False) as bars:  # it has lines of its own
        begin = None if json else _print_plan
        result = run(names, on_progress=Teller(bars, quiet=json), begin=begin, **settings)
    typer.echo(of_page(result.page, reproduce_tables.counts(result.outcomes)))
    done = result.done
    for name, why in done.missing.items():
        typer.echo(f"{name}: {why}", err=True)
    for name, why in done.left_out.items():
        typer.echo(f"{name} is left out: {why}", err=True)
    if done.refused or done.missing or done.left_out:
        summary = f"{len(done.refused)} answers refused, {len(done.missing)} experiments not run"
        typer.echo(summary, err=True)
        raise typer.Exit(REFUSED)


def _print_plan(costs: Costs) -> None:
    from foveate_lab.cli import reproduce_tables

    typer.echo(reproduce_tables.summary(costs), err=True)
