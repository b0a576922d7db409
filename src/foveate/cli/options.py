"""Options of several commands: what is asked, about which images, under which methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Images = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="An image to ask about; repeatable.")
]
Text = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="What to ask. [default: about images that come along]"),
]
Outside = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Data may name any file that you can read, not only those of its own folder.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the Python code that a model brings along: it can do all that you can.",
    ),
]
Specs = Annotated[
    list[str] | None,
    typer.Option(metavar="SPEC", help="snapkv, or h2o:budget=256,recent=0.25; repeatable."),
]
