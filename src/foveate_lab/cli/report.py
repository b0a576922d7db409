"""``foveate report``: a page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foveate.cli.findings import counted, of_page
from foveate.cli.outputs import check_file
from foveate.data import files
from foveate.errors import InvalidInput
from foveate_lab.eval.bundle import read_bundles
from foveate_lab.report.page import page


def report(
    folder: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="What foveate eval or reproduce wrote."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="[default: report.html in the first DIR]"),
    ] = None,
) -> None:
    """Make one page of results: scores against memory, with intervals. It needs no network.

    Several folders are put together where they asked the same questions of the same model, and
    stand beside each other where they did not. One that is not as its manifest says is refused.
    """
    for one in folder:
        if not one.is_dir():
            what = "is a file" if one.exists() else "does not exist"
            raise InvalidInput(
                f"the directory {str(one)!r} {what}. Name one that foveate eval or reproduce wrote."
            )
    path = out or folder[0] / "report.html"
    check_file("report", "--out", path)
    files.write(path, page(*folder))
    rows = [row for one in folder for bundle in read_bundles(one) for row in bundle.stored.rows]
    kinds = (("task", "task"), ("spec", "policy"), ("sample", "sample"))
    said = [counted(len({row[key] for row in rows}), thing) for key, thing in kinds]
    typer.echo(of_page(path, f"{counted(len(rows), 'answer')}, of {', '.join(said)}"))
