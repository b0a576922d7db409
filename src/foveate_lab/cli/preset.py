"""``foveate eval --preset``: the cost before it starts, and a page and an archive afterwards."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from foveate.cli import console, tables
from foveate.cli.findings import counted, of_page
from foveate.defaults import BUDGET_BY_DEFAULT
from foveate.errors import InvalidInput, MissingPackage
from foveate.loading.model import Loaded, is_shipped
from foveate_lab.cli.progress import duration
from foveate_lab.defaults import PresetName
from foveate_lab.eval.bundle import pack
from foveate_lab.eval.evaluation import evaluate
from foveate_lab.eval.padding import load
from foveate_lab.eval.presets import PRESETS, methods_of, tasks_of
from foveate_lab.eval.probe import SAMPLES, ProbedCost, cost_of, unanswered
from foveate_lab.report.page import write_page

Settings = dict[str, Any]
"""Arguments of :func:`foveate_lab.eval.evaluation.evaluate` by name."""


def complete(name: PresetName, settings: Mapping[str, Any]) -> Settings:
    """Return the settings of an evaluation with the preset's values for those that are None.

    Raises:
        InvalidInput: benchmarks are missing, or an option that a preset does not take.
        MissingPackage: the page at the end cannot be made.
    """
    from foveate.cli.doctor import lacking

    for package in lacking("report"):
        raise MissingPackage(f"--preset {name}", package, "report")
    if settings["executor"] != "local":
        raise InvalidInput(
            f"--preset {name} runs in this process. Leave --executor {settings['executor']} out."
        )
    preset, model, data = PRESETS[name], settings["model"], settings["data"]
    if data is not None and not data.is_dir():
        raise InvalidInput(
            f"--data {str(data)!r} is no folder: with --preset it is the one whose subfolders hold "
            "the benchmarks, e.g. data."
        )
    folder = Path(f"{name}-{Path(model).expanduser().name}")
    return {
        **settings,
        "data": None,
        "tasks": settings["tasks"] or tasks_of(preset, model, data),
        "methods": settings["methods"] or methods_of(preset, model),
        "limit": settings["limit"] or preset.samples,
        "out": settings["out"] or folder,
    }


def agree(name: PresetName, settings: Settings, *, yes: bool) -> Settings:
    """Show the cost of an evaluation, measured by a probe, and ask whether to start it.

    ``yes`` skips the questions. Returns the settings with the model loaded.

    Raises:
        InvalidInput: stdin is no terminal and ``yes`` is False, or a task answers nothing.
        Exit: the answer is no.
    """
    model = settings["model"]
    if (download := download_of(model)) and not yes:
        _confirm(f"{model} is downloaded first: {download}. Start?", name)
    with console.progress(hidden=False) as bars:
        bars.add_task("loading the model", total=None)
        loaded = load(model, settings["trust_remote_code"], settings["device_map"])
    if not loaded.sees:
        raise InvalidInput(
            f"--preset {name} asks about images, and {model} reads text only. Name a "
            "vision-language model, or choose tasks of text: "
            f"foveate eval {model} --tasks text_needle --out DIR."
        )
    loaded = replace(loaded, name=model)  # results name the model as the command does
    few = min(SAMPLES, settings["limit"])
    typer.echo(f"Measuring the cost on {counted(few, 'sample')} per task ...", err=True)
    cost = _probe(loaded, settings, few)
    console.errors().print(_plan(name, settings, cost, download))
    if not yes:
        _confirm("Start?", name)
    return {**settings, "model": loaded}


def _probe(loaded: Loaded, settings: Settings, few: int) -> ProbedCost:
    probing = {"model": loaded, "limit": few, "timed": 0, "batch": 1, "out": None}
    result = evaluate(**{**settings, **probing})
    if failure := unanswered(result.refused, result.rows):
        raise InvalidInput(
            f"no sample of {failure.task} was answered; sample {failure.sample} under "
            f"{failure.spec}: {failure.message}"
        )
    return cost_of(result.rows, settings["limit"])


def _plan(name: str, settings: Settings, cost: ProbedCost, download: str) -> Any:
    out = settings["out"]
    budget = f"at {settings['budgets'] or BUDGET_BY_DEFAULT}: "
    kind = "on the GPU" if cost.on_gpu else "of main memory"
    rows = (
        ("Model", settings["model"]),
        ("Tasks", f"{settings['limit']} samples each: {_spaced(settings['tasks'])}"),
        ("Policies", f"the full cache, and {budget}{_spaced(tables.short(settings['methods']))}"),
        ("Prompts", f"about {float(f'{cost.tokens:.2g}'):,.0f} tokens"),
        ("Time", f"about {duration(cost.seconds)} on this machine"),
        ("Memory", f"{cost.memory / 1e9:,.1f} GB {kind}, the peak of the probe"),
        ("Downloads", download or "nothing"),
        ("Writes", f"{out}, {out}/report.html and {out}.tar.gz"),
    )
    return tables.table(
        rows,
        tables.column(name, 0, no_wrap=True),
        tables.column("", 1, overflow="fold"),
    )


def _spaced(names: str) -> str:
    """Return a list with blanks after its commas, so that a table can wrap it."""
    return ", ".join(names.split(","))


def download_of(model: str) -> str:
    """Describe the weights that loading the model downloads; empty if it is on this machine."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    if is_shipped(model) or Path(model).expanduser().exists():
        return ""
    try:
        if isinstance(try_to_load_from_cache(model, "config.json"), str):
            return ""
        files = HfApi().model_info(model, files_metadata=True).siblings or []
        size = sum(file.size or 0 for file in files if file.rfilename.endswith(".safetensors"))
    except (OSError, ValueError):  # offline, or no such model: loading it reports that
        return ""
    return f"{size / 1e9:,.1f} GB of weights from the hub"


def _confirm(question: str, name: str) -> None:
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"--preset {name} asks before it starts, and stdin is no terminal. Add --yes to start "
            "without the question."
        )
    if not typer.confirm(question, err=True):
        raise typer.Exit(0)


def finish(out: Path) -> None:
    """Write the page and the archive of finished results, and say what to do with them."""
    written = write_page(out)
    typer.echo(of_page(written.path, counted(written.answers, "answer")))
    typer.echo(f"To hand in: {pack(out)} (docs/hand_in.md says how)")
