"""``foveate eval``: many policies on many samples, one prefill per prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn

from foveate.cli import console, options
from foveate.cli.options import check_folder, model_option, named_path
from foveate.defaults import BUDGET_BY_DEFAULT, FRAMES, SEES
from foveate.errors import InvalidInput
from foveate_lab.cli.options import AnyExecutor, Batch, JudgeName, Url, Workers
from foveate_lab.defaults import FILM_FRAMES, LIMIT, PresetName, Protocol

if TYPE_CHECKING:
    from foveate_lab.eval.evaluation import Evaluation

OF_PRESETS = ("model_argument", "preset", "yes")
"""Options that are no arguments of ``foveate_lab.evaluate``."""
REFUSED = 3  # exit code if some answers were refused


def evaluate(
    model_argument: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Same as --model, e.g. demo.", show_default=False),
    ] = None,
    preset: Annotated[
        PresetName | None,
        typer.Option(
            help="Complete evaluation, e.g. first-hour: four benchmarks, five policies, a page and "
            "an archive. It shows the cost and asks before it starts."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Start a --preset without the question.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the results, e.g. results. [required; with --preset PRESET-MODEL]",
            parser=named_path,
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="T,...",
            help="Tasks or benchmarks to run, e.g. document,chart. [default: document]",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='File of your own questions, e.g. questions.jsonl: JSON lines, {"question": '
            'TEXT, "answers": [TEXT, ...], "images": [FILE, ...], "videos": [FILE, ...]} each; '
            "images and videos are in its folder. With --preset: folder with a subfolder per "
            "benchmark.",
            show_default=False,
        ),
    ] = None,
    fps: options.Fps = None,
    frames: Annotated[
        int | None,
        typer.Option(
            "--frames",
            metavar="N",
            help="Number of evenly spaced frames to sample from a video, e.g. 16. "
            f"[default: {FRAMES} for --data, {FILM_FRAMES} for benchmarks]",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC,...",
            help="Methods to compare, e.g. snapkv,oracle (keeps what shows the answer). "
            "[default: recommended (on demo with its profile), snapkv, lookm and mixkv]",
            show_default=False,
        ),
    ] = None,
    budgets: Annotated[
        str, typer.Option(metavar="B,...", help="Budgets of each method, e.g. 20%,10%.")
    ] = BUDGET_BY_DEFAULT,
    model: Annotated[str | None, model_option(SEES)] = None,
    protocol: Annotated[
        Protocol,
        typer.Option(help="Compression with the question (query-aware) or before it."),
    ] = "query-aware",
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help=f"Number of samples per task, e.g. 20. [default: {LIMIT}; first-hour: 200]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Random seed for sample selection, e.g. 1.")
    ] = 0,
    judge: JudgeName = None,
    longest_prompt: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=2,
            help="Maximum prompt tokens, images included, e.g. 4096; longer prompts lose their "
            "middle.",
        ),
    ] = None,
    timed: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of samples per task to time and analyse, one by one, e.g. 10.",
        ),
    ] = 3,
    batch: Batch = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the results in DIR.")] = False,
    executor: AnyExecutor = "local",
    workers: Workers = None,
    url: Url = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Refuse budgets below what a method always keeps, instead of raising them.",
        ),
    ] = False,
    allow_outside: options.Outside = False,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
) -> None:
    """Answer many questions under many policies, and record answers and scores.

    Each prompt is prefilled once, and all policies branch from it. Results are written after every
    answer; --resume continues an interrupted run, and retries refused samples. The exit code is 3
    if samples were refused.
    """
    options = locals()  # the options are the arguments of evaluate(), and those of presets
    settings = {name: value for name, value in options.items() if name not in OF_PRESETS}
    settings["model"] = _model(model_argument, model)
    from foveate_lab.cli.scores import show_outcome

    if preset is not None:
        from foveate_lab.cli import preset as presets

        settings = presets.complete(preset, settings)
    elif out is None:
        raise InvalidInput(
            "--out is missing: give a folder for the results, e.g. foveate eval --out results."
        )
    else:
        settings["limit"] = limit or LIMIT
    folder: Path = settings["out"]
    check_folder("--out", folder)
    if preset is not None and not resume:
        settings = presets.agree(preset, settings, yes=yes)
    result = _run(settings)
    show_outcome(folder, result, closing=preset is None)
    if preset is not None:
        presets.finish(folder)
    if result.refused:
        raise typer.Exit(REFUSED)


def _model(argument: str | None, option: str | None) -> str:
    """Return the model that is named as the argument or as --model."""
    if argument and option and argument != option:
        raise InvalidInput(f"{argument!r} and --model {option!r} are two models: name one.")
    return argument or option or SEES


def _run(settings: Mapping[str, Any]) -> Evaluation:
    """Evaluate with a progress bar."""
    from foveate_lab.eval import evaluation

    columns = (MofNCompleteColumn(), TimeRemainingColumn())
    with console.progress(hidden=False, columns=columns) as bars:
        bar = bars.add_task("", total=None, visible=False)

        def advance(task: str, count: int, total: int) -> None:
            bars.update(bar, description=task, advance=count, total=total, visible=True)

        warn = partial(typer.echo, err=True)
        return evaluation.evaluate(**settings, advance=advance, warn=warn)
