"""``foveate bench --suite gpu``: everything that is measured on a GPU, on one page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import RenderableType
from rich.text import Text

from foveate.cli import console, tables
from foveate.cli.options import check_folder
from foveate.errors import InvalidInput
from foveate.ops.choice import Impl

CHECKOUT = Path(__file__).parents[3]
PARTS = "kernels, ragged, steps, attention, half, tests, headlines, contexts, kvpress"
Suite = Annotated[
    Literal["gpu"] | None,
    typer.Option(help="Suite to run instead: gpu, all that needs a CUDA GPU, in about 7 minutes."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder for gpu.md and gpu.json of --suite, e.g. out. [default: benchmarks/results]",
        show_default=False,
    ),
]
PartNames = Annotated[
    list[str] | None,
    typer.Option("--part", metavar="PART", help=f"Part of --suite to run, repeatable: {PARTS}."),
]
Anew = Annotated[bool, typer.Option("--anew", help="Measure all parts of --suite again.")]
Device = Annotated[
    Literal["cuda", "cpu"], typer.Option(help="Device of --suite; cpu only with --quick.")
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Toy sizes, to check that --suite runs; needs --out.")
]
Kernels = Annotated[
    Impl | None,
    typer.Option(
        help="Kernels of models in --suite, e.g. triton. [default: triton, on a CPU reference]",
        show_default=False,
    ),
]
OPTIONS = ("suite", "out", "part", "anew", "device", "quick", "kernels")
SHARED = ("peer_python", "json")


def check(names: Sequence[str], suite: str | None) -> None:
    """Refuse options that do not belong to the chosen kind of benchmark.

    Raises:
        InvalidInput: one of ``names`` does not belong; the message names it.
    """
    for name in names:
        flag = f"--{name.replace('_', '-')}"
        if suite is None and name in OPTIONS:
            raise InvalidInput(f"{flag} works only with --suite gpu: add that, or leave it out.")
        if suite is not None and name not in (*OPTIONS, *SHARED):
            raise InvalidInput(f"--suite gpu sets its own models and methods: leave {flag} out.")


def suite_run(
    *,
    device: str,
    quick: bool,
    kernels: Impl | None,
    peer_python: str | None,
    out: Path | None,
    part: Sequence[str],
    anew: bool,
    json: bool,
) -> None:
    """Run the suite and print the path of its page.

    Raises:
        Exit: status 1 if a kernel's result differs from its reference's, or a test fails.
    """
    if quick and out is None:
        raise InvalidInput("--quick writes toy figures: name a folder for them with --out.")
    kernels = kernels or ("triton" if device == "cuda" else "reference")
    gpu = _suite()
    setting = gpu.SuiteSetting(device=device, quick=quick, kernels=kernels, peer_python=peer_python)
    folder = out or gpu.RESULTS
    check_folder("--out", folder)
    stderr = console.errors()
    results = gpu.run_suite(
        setting,
        folder,
        only=part,
        anew=anew,
        report=lambda name, text: stderr.print(Text(f"{name}: {text}")),
    )
    bad = [_row_name(row) for row in gpu.wrong(results)]
    if json:
        console.print_json({"folder": str(folder), "wrong": bad, "parts": results})
    else:
        _show(folder, results, bad)
        console.show("", _facts_table(gpu.findings({} if quick else results)))
    if bad:
        raise typer.Exit(1)


def _suite() -> Any:
    """Import the suite, which only a checkout contains.

    Raises:
        InvalidInput: Foveate runs from an installed package.
    """
    if not (CHECKOUT / "benchmarks" / "gpu").is_dir():
        raise InvalidInput(
            "the suite is not installed: run --suite gpu from a checkout of Foveate."
        )
    sys.path.append(str(CHECKOUT))
    from benchmarks import gpu

    return gpu


def _row_name(row: dict[str, Any]) -> str:
    if "test" in row:
        return str(row["test"])
    return f"{row['kernel']} ({row['dtype']}, head size {row['d']})"


def _row(name: str, part: Mapping[str, Any]) -> Sequence[str]:
    failed = sum("failed" in row for row in part["rows"])
    state = part["state"] + (f": {part['reason']}" if part["reason"] else "")
    return name, state, f"{part['seconds']:.0f}", str(len(part["rows"])), str(failed)


def _facts_table(findings: Sequence[Any]) -> RenderableType:
    """Return the list of what a GPU run settles, with a verdict on each fact."""
    return tables.table(
        findings,
        tables.column("To be known", lambda finding: finding.fact.name),
        tables.column("Threshold", lambda finding: finding.fact.threshold, no_wrap=True),
        tables.number("Measured", "figure", ".3g"),
        tables.column("Verdict", "verdict", no_wrap=True),
    )


def _show(folder: Path, results: dict[str, Any], bad: Sequence[str]) -> None:
    table = tables.table(
        starmap(_row, results.items()), "Part", "State", "Seconds", "Rows", "Without figures"
    )
    console.show(table, Text(f"\n{folder / 'gpu.md'} and {folder / 'gpu.json'}"))
    if bad:
        console.show(Text(f"Wrong: {'; '.join(bad)}."))
