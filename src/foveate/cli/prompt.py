"""Texts and image files that a model is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from PIL import Image

from foveate.data import read_image
from foveate.demo import album
from foveate.errors import InvalidInput
from foveate.eval.model import SEES

DESCRIBE = "Describe what you see."
QUESTION = "Which painting did Alfred Yarbus show to his observers?"


def question(
    model: str, text: str | None, paths: Sequence[Path]
) -> tuple[str, Sequence[Image.Image]]:
    """What is asked, about which images; what is not said comes with Foveate.

    Raises:
        InvalidInput: the text is empty, or a file is missing or is no image.
    """
    if text is None and not paths and model == SEES:
        return album.QUESTION, album.images()
    images = [read_image(path) for path in paths]
    if text is None:
        text = DESCRIBE if images else f"{_reading()}\n\n{QUESTION}"
    if not text.strip():
        raise InvalidInput(f"the prompt {text!r} is empty: give at least one word with --prompt.")
    return text, images


def passages(count: int) -> list[str]:
    """Parts of the text that comes with Foveate: two thirds each, beginning at other paragraphs."""
    paragraphs = _reading().split("\n\n")
    size = max(1, 2 * len(paragraphs) // 3)
    turned = (paragraphs[i:] + paragraphs[:i] for i in range(min(count, len(paragraphs))))
    return ["\n\n".join(part[:size]) for part in turned]


def _reading() -> str:
    text = files("foveate.demo").joinpath("reading.txt").read_text(encoding="utf-8")
    return text.strip()
