"""``foveate run --picture FILE``: on the images, what each method kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from PIL import Image

from foveate.cli.measure import Measured, Row
from foveate.cli.policies import short
from foveate.cli.prompt import check_writable
from foveate.core import files
from foveate.errors import InvalidInput
from foveate.eval.model import Loaded
from foveate.eval.prompt import Prompt
from foveate.report import Grid, grids, kept_picture


def check(path: Path, images: int) -> None:
    """Raises InvalidInput, before anything is loaded, if the picture could not be made."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise InvalidInput(f"--picture {str(path)!r} names no kind of image: end it with .png.")
    check_writable("picture", "--picture", path)
    if not images:
        raise InvalidInput(
            "--picture shows on images what was kept, and there is none. Give --image, too."
        )


def image_grids(loaded: Loaded, prompt: Prompt) -> list[Grid]:
    """Where the visual tokens stand; raises InvalidInput if that is not known for this model."""
    return grids(prompt.vision, prompt.inputs, prompt.images, loaded.model.config)


def save(
    path: Path, images: Sequence[Image.Image], where: Sequence[Grid], measured: Sequence[Measured]
) -> None:
    """Draws the picture and says where it is."""
    page = kept_picture(images, where, [(*_words(one.row), one.held) for one in measured])
    with files.replacing(path) as part:
        page.save(part)
    typer.echo(f"What was kept, on the images: {path}", err=True)


def _words(row: Row) -> tuple[str, str]:
    """Title and second line of a method's row of images."""
    kept = f"{row.kept_tokens:,.0f} tokens, {row.kv_bytes / 2**20:,.1f} MiB"
    return f"{short(row.method)} {row.budget or ''}".strip(), f'{kept}: "{row.answer.strip()}"'
