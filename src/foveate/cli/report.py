"""``foveate report``: results as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foveate.cli.files import check_writable
from foveate.core import files
from foveate.report.page import page


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What foveate eval wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="[default: DIR/report.html]")
    ] = None,
) -> None:
    """Make one page of results: scores against memory, with intervals. It needs no network."""
    path = out or folder / "report.html"
    check_writable("report", "--out", path)
    files.write(path, page(folder))
    typer.echo(str(path))
