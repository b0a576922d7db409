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
            help="Downloaded directory, e.g. llava-v1.5-7b: a LLaVA-1.5, MobileVLM V2, "
            "InternVL-Chat 1.5 or Qwen-VL."
        ),
    ],
    new: Annotated[Path, typer.Argument(help="Directory to write, e.g. llava; it must not exist.")],
    vision: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory of the CLIP tower, e.g. clip-vit-large-patch14-336, for a LLaVA or "
            "MobileVLM whose weights lack it.",
        ),
    ] = None,
) -> None:
    """Convert a model in its authors' layout to one that Foveate and transformers load.

    NEW appears only when it is complete, and needs as much disk space as ORIGINAL. In Python,
    import foveate.models before loading it.
    """
    from foveate_lab.convert import convert as write  # loads the models' code

    with console.progress(hidden=False) as bars:
        bars.add_task(f"converting {original}", total=None)
        layout = write(original, new, vision)
    typer.echo(f"{new}: a {layout.name}. Try: foveate run --model {new} --image FILE --prompt TEXT")
