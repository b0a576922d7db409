"""``foveate convert ORIGINAL NEW``: a model in its authors' layout, for transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foveate.cli import console


def convert(
    original: Annotated[
        Path,
        typer.Argument(
            help="The directory as it was downloaded: LLaVA-1.5, MobileVLM V2, InternVL-Chat 1.5 "
            "or Qwen-VL."
        ),
    ],
    new: Annotated[Path, typer.Argument(help="The directory to write; it must not exist.")],
    vision: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The CLIP tower's directory, for a LLaVA or MobileVLM whose weights lack it.",
        ),
    ] = None,
) -> None:
    """Convert a model in its authors' layout to one that Foveate and transformers load.

    NEW appears when it is complete, and takes as much room as ORIGINAL. In Python, import
    foveate.models before you load it.
    """
    from foveate_lab.convert import convert as write  # loads the models' code

    with console.progress(hidden=False) as bars:
        bars.add_task(f"converting {original}", total=None)
        layout = write(original, new, vision)
    typer.echo(f"{new}: a {layout.name}. Try: foveate run --model {new} --image FILE --prompt TEXT")
