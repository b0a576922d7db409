"""What commands are given: texts, images, files of prompts, and files to write."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from itertools import islice
from pathlib import Path

from PIL import Image

from foveate.data import Record, read_image, read_lines
from foveate.errors import InvalidInput
from foveate.eval.model import SEES
from foveate_demo import album


def check_writable(what: str, option: str, path: Path) -> None:
    """Raises InvalidInput, before any work is done, if the file could not be written there."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        where = "is a directory" if path.is_dir() else "stands in a directory that does not exist"
        raise InvalidInput(f"the {what} cannot be written: {option} {str(path)!r} {where}.")


def prompts_of(path: Path, most: int) -> list[Record]:
    """The first records of a file of prompts, in JSON lines.

    Raises:
        InvalidInput: it cannot be read, holds nothing, or has a line that is no record.
    """
    if found := list(islice(read_lines(path), most)):
        return found
    raise InvalidInput(f"the prompts file {str(path)!r} is empty: give one prompt a line.")


def words_of(record: Record) -> str:
    """The text of a prompt.

    Raises:
        InvalidInput: it is none, or has no words.
    """
    text = record.text("prompt")
    if not text.strip():
        raise InvalidInput(f"{record.where}: the prompt {text!r} is empty: give at least a word.")
    return text


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
    text = files("foveate_demo").joinpath("reading.txt").read_text(encoding="utf-8")
    return text.strip()
