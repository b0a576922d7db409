"""Files that commands read and write."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from foveate.data import Record, read_lines
from foveate.errors import InvalidInput


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
