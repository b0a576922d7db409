"""``foveate run --picture FILE``: a picture of the patches that each method kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from PIL import Image

from foveate.cli.options import check_file
from foveate.cli.run.measure import ComparisonRow, Measured
from foveate.cli.tables import short
from foveate.data import files
from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.models.token_grids import ImageTokens, image_tokens, not_known
from foveate.pictures import kept_picture
from foveate.prompts.prompt import Prompt


def check(path: Path, images: int) -> None:
    """Raise InvalidInput, before anything is loaded, if the picture cannot be made."""
    check_picture(path)
    if not images:
        raise InvalidInput("--picture draws on images, and the prompt has none: add --image FILE.")


def check_picture(path: Path) -> None:
    """Raise InvalidInput if no picture can be written to the path."""
    if path.suffix.lower() not in Image.registered_extensions():
        raise InvalidInput(f"--picture {str(path)!r} has no image format: end it with .png.")
    check_file("picture", "--picture", path)


def save(
    path: Path,
    images: Sequence[Image.Image],
    loaded: Loaded,
    prompt: Prompt,
    measured: Sequence[Measured],
    times: Sequence[float] = (),
) -> None:
    """Draw and save the picture; it has a note if the images' patches are not known.

    The first images are frames of videos at ``times``.
    """
    tokens, note = _locate(images, loaded, prompt)
    rows = [(*_captions(each.row), each.kept_share) for each in measured]
    computed = [each.computed for each in measured]
    page = kept_picture(images, tokens, rows, note, computed, times)
    with files.replacing(path) as part:
        page.save(part)
    typer.echo(f"Picture of the kept patches: {path}", err=True)
    if note:
        typer.echo(note, err=True)


def _locate(
    images: Sequence[Image.Image], loaded: Loaded, prompt: Prompt
) -> tuple[list[ImageTokens] | None, str]:
    """Return the images' tokens and their cells, or None and a note that says why."""
    sizes, config = [image.size for image in images], loaded.model.config
    tokens = image_tokens(prompt.vision, prompt.inputs, sizes, config, loaded.reader)
    note = f"The images show no patches: {not_known(config, loaded.reader)}."
    return tokens, note if tokens is None else ""


def _captions(row: ComparisonRow) -> tuple[str, str]:
    """Return the title and the second line of a method's row of images."""
    kept = f"{row.kept_tokens:,.0f} tokens, {row.kv_bytes / 2**20:,.1f} MiB"
    return f"{short(row.method)} {row.budget or ''}".strip(), f'{kept}: "{row.answer.strip()}"'
