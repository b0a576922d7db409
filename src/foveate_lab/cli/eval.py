"""``foveate eval``: many policies on many samples, one prefill per prompt."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from foveate.cli import console, options
from foveate.cli.options import check_folder, model_option, named_path
from foveate.defaults import BUDGET_BY_DEFAULT, FRAMES, SEES
from foveate_lab.cli.options import Batch, Executor, JudgeName, Workers
from foveate_lab.defaults import FILM_FRAMES, Protocol

REFUSED = 3  # exit code if some answers were refused


def evaluate(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the results go.", parser=named_path)
    ],
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
            f"[default: {FRAMES} of --data, {FILM_FRAMES} of benchmarks]",
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
    judge: JudgeName = None,
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
    settings = locals()  # the options are the arguments of evaluate()
    from foveate_lab.cli.scores import show_outcome
    from foveate_lab.eval import evaluation

    check_folder("--out", out)
    columns = (MofNCompleteColumn(), TimeRemainingColumn())
    with console.progress(hidden=False, columns=columns) as bars:
        bar = bars.add_task("", total=None, visible=False)

        def advance(task: str, count: int, total: int) -> None:
            bars.update(bar, description=task, advance=count, total=total, visible=True)

        warn = partial(typer.echo, err=True)
        result = evaluation.evaluate(**settings, advance=advance, warn=warn)
    show_outcome(out, result)
    if result.refused:
        raise typer.Exit(REFUSED)
