"""``foveate eval``: many policies on many samples, each prompt read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.text import Text

from foveate.cli import console, options
from foveate.cli.options import model_option
from foveate.cli.outputs import check_folder
from foveate.cli.policies import by_default, short, with_known_profile
from foveate.cli.run.rows import broken
from foveate.data.clip import check_sampling
from foveate.defaults import BUDGET_BY_DEFAULT, FRAMES, SEES
from foveate.errors import InvalidInput, InvalidParameter
from foveate.loading.hardware import versions_of_results
from foveate_lab.cli.options import Batch, Executor, Workers
from foveate_lab.cli.scores import scores
from foveate_lab.eval.answering.reading import Protocol
from foveate_lab.eval.benchmarks import film
from foveate_lab.eval.bundle import seal
from foveate_lab.eval.contenders import check_strictly, contenders, separate
from foveate_lab.eval.executors import Job, find_executor, lacking
from foveate_lab.eval.held import Key
from foveate_lab.eval.judge import Judge, find_judge
from foveate_lab.eval.questions import questions
from foveate_lab.eval.results import DAMAGED, ROWS, Results
from foveate_lab.eval.summary import Rows, failures
from foveate_lab.eval.task import Task
from foveate_lab.eval.tasks import find_tasks, separate_tasks

REFUSED = 3  # the exit code where some samples were


def evaluate(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results go.")],
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="T,...", help="What is asked. [default: document]", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Questions of your own, beside --tasks or alone: JSON lines, {"question": TEXT, '
            '"answers": [TEXT, ...], "images": [FILE, ...], "videos": [FILE, ...]} each; their '
            "files stand in its folder.",
            show_default=False,
        ),
    ] = None,
    fps: options.Fps = None,
    frames: Annotated[
        int | None,
        typer.Option(
            "--frames",
            metavar="N",
            help="Frames that are taken of a video, at even distances. "
            f"[default: {FRAMES} of --data, {film.FRAMES} of benchmarks]",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC,...",
            help="Also oracle: what shows the answer is kept. [default: recommended (on demo with "
            "its profile), snapkv, lookm and mixkv]",
            show_default=False,
        ),
    ] = None,
    budgets: Annotated[
        str, typer.Option(metavar="B,...", help="What each method keeps.")
    ] = BUDGET_BY_DEFAULT,
    model: Annotated[str, model_option(SEES)] = SEES,
    protocol: Annotated[
        Protocol,
        typer.Option(help="Whether the question is there when the prompt is compressed."),
    ] = "query-aware",
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Samples of each task.")] = 100,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the samples.")] = 0,
    judge: Annotated[
        str | None,
        typer.Option(metavar="MODULE:CALLABLE", help="A language model: a prompt in, text out."),
    ] = None,
    longest_prompt: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=2, help="Tokens, images counted; longer prompts lose their middle."
        ),
    ] = None,
    timed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Samples of each task that are timed and drawn, answer by answer.",
        ),
    ] = 3,
    batch: Batch = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the results in DIR.")
    ] = False,
    executor: Executor = "local",
    workers: Workers = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse budgets below what is always kept; else they are raised."
        ),
    ] = False,
    allow_outside: options.Outside = False,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
) -> None:
    """Ask many questions under many policies, and write down the answers.

    Every prompt is read once, and all policies branch from it. Results are on disk after every
    answer; a run that was broken off goes on with --resume, which also tries again what was
    refused. The exit code is 3 if everything is asked and something was refused.
    """
    if batch > 1 and timed >= limit:
        raise InvalidParameter(
            f"--timed {timed} answers all of {limit} samples one by one, so none is left for "
            f"--batch {batch}. Give --timed 0, or leave --batch out."
        )
    check_folder("--out", out)
    judged = find_judge(judge) if judge else None
    chosen = _chosen(tasks, data, fps, frames, judged, allow_outside)
    if not judge:
        _say_what_has_no_score(chosen)
    named = by_default(model) if methods is None else separate(methods)
    specs = contenders([with_known_profile(spec, model) for spec in named], separate(budgets))
    if strict:
        check_strictly(specs)
    configuration = {
        "model": model,
        "tasks": [task.name for task in chosen],
        "specs": specs,
        "protocol": protocol,
        "limit": limit,
        "seed": seed,
        "judge": judge,
        "longest_prompt": longest_prompt,
        "timed": timed,
        "batch": batch,
        "strict": strict,
        "versions": versions_of_results(),
    }
    place = find_executor(executor, model, protocol, workers, trust_remote_code, device_map)
    order: list[Key] = []
    with ExitStack() as stack:
        results = stack.enter_context(Results(out, configuration, resume=resume))
        if results.damaged:
            typer.echo(
                f"{out / ROWS}: {len(results.damaged)} damaged line(s) set aside into "
                f"{DAMAGED}, to be asked again.",
                err=True,
            )
        with console.progress(hidden=False):  # what loads a model is quiet
            execute = stack.enter_context(place)
        bars = stack.enter_context(console.bars(MofNCompleteColumn(), TimeRemainingColumn()))
        bar = bars.add_task(chosen[0].name if chosen else "", total=len(chosen) * limit)

        def advance(job: Job) -> None:
            bars.update(bar, description=job.task.name, advance=len(job.samples))

        def left() -> Iterator[Job]:
            """What lacks an answer; the rest is skipped."""
            for job in _jobs(chosen, configuration):
                order.extend(job.keys)
                if todo := lacking(job, results):
                    yield todo
                else:
                    advance(job)

        for job, rows in execute(left()):
            for row in rows:
                results.add(row)
            advance(job)
        results.sort(order)
        seal(out, results.rows)
    _say_what_came(out, results.rows)


def _chosen(
    tasks: str | None,
    data: Path | None,
    fps: float | None,
    frames: int | None,
    judge: Judge | None,
    outside: bool,
) -> list[Task]:
    """What is asked: of tasks, and of a file."""
    check_sampling(fps, frames)
    rate = int(fps) if fps is not None and fps.is_integer() else fps  # as tasks' names have it
    given = {"fps": rate, "frames": frames}
    films = {name: value for name, value in given.items() if value is not None}
    if tasks is None and data is None:
        tasks = "document"
    names = [] if tasks is None else separate_tasks(tasks)
    chosen_tasks = [task for name in names for task in find_tasks(name, judge, outside, films)]
    if data is not None:
        chosen_tasks.append(questions(data, fps=rate, frames=frames, outside=outside))
    for name, value in films.items():
        if not any(f"{name}=" in task.name for task in chosen_tasks):
            raise InvalidInput(
                f"--{name} {value} is of videos, and nothing that is asked has any. Give --data "
                "FILE with videos, or a benchmark of them."
            )
    if data is not None and any(task.name == chosen_tasks[-1].name for task in chosen_tasks[:-1]):
        raise InvalidInput(
            f"a task is called {chosen_tasks[-1].name!r}, as {str(data)!r} is: "
            "give the file another name."
        )
    return chosen_tasks


def _say_what_came(out: Path, rows: Rows) -> None:
    """How many answers there are; and what was refused, which the exit code says as well."""
    refused = failures(rows)
    count = sum(one.times for one in refused)
    typer.echo(f"{out}: {len(rows) - count} answers" + (f", {count} refused" if count else ""))
    if raised := sum(bool(row.get("raised")) for row in rows):
        typer.echo(
            f"{raised} of them keep more than was asked for: what their policies always keep.\n"
            "--strict refuses such budgets."
        )
    console.show(*scores(rows))
    if refused:
        table = console.table("Task", "Policy", "Refused", "Sample", "Why")
        for one in refused:
            requested = sum((row["task"], row["spec"]) == (one.task, one.spec) for row in rows)
            table.add_row(
                *map(
                    Text,
                    (
                        one.task,
                        broken(short(one.spec)),
                        f"{one.times} of {requested}",
                        one.sample,
                        one.said,
                    ),
                )
            )
        console.show("", table)
    typer.echo(f"\nNext: foveate report {out}")
    if refused:
        raise typer.Exit(REFUSED)


def _say_what_has_no_score(chosen: Sequence[Task]) -> None:
    for task in chosen:
        if task.unjudged:
            typer.echo(
                f"{task.name}: no --judge, so its scores stay empty; what differs from the "
                "full cache is measured.",
                err=True,
            )


def _jobs(chosen: Sequence[Task], run: Mapping[str, Any]) -> Iterator[Job]:
    """All that is asked, sample by sample, or batch by batch where nothing is timed."""
    for task in chosen:
        samples = iter(task.samples(run["limit"], run["seed"]))
        job = partial(Job, task, longest_prompt=run["longest_prompt"], strict=run["strict"])
        for sample in islice(samples, run["timed"]):
            yield job(sample=sample, specs=tuple(run["specs"]), timed=True)
        while batch := tuple(islice(samples, run["batch"])):
            first, *beside = batch
            yield job(sample=first, specs=tuple(run["specs"]), timed=False, beside=tuple(beside))
