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
Specs = Annotated[
    list[str] | None,
    typer.Option(metavar="SPEC", help="snapkv, or h2o:budget=256,recent=0.25; repeatable."),
]
