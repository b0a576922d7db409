"""``foveate report``: a page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foveate.cli.options import check_file
from foveate.errors import InvalidInput


def report(
    folder: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Folders that foveate eval or reproduce wrote, e.g. results."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Page to write, e.g. page.html. [default: report.html in the first DIR]",
        ),
    ] = None,
) -> None:
    """Make one page of results: scores against memory, with intervals. It needs no network.

    Folders with the same model and questions are merged; others become separate parts. A folder
    that differs from its manifest is refused.
    """
    from foveate.cli.findings import counted, of_page
    from foveate_lab.report.page import write_page

    for path in folder:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise InvalidInput(
                f"the directory {str(path)!r} {what}. "
                "Name one that foveate eval or reproduce wrote."
            )
    path = out or folder[0] / "report.html"
    check_file("report", "--out", path)
    written = write_page(*folder, out=path)
    kinds = ((written.tasks, "task"), (written.policies, "policy"), (written.samples, "sample"))
    counts = ", ".join(counted(number, thing) for number, thing in kinds)
    typer.echo(of_page(path, f"{counted(written.answers, 'answer')}, of {counts}"))
