"""Files that commands read and write."""

from __future__ import annotations

from pathlib import Path

from foveate.core.errors import InvalidInput


def check_writable(what: str, option: str, path: Path) -> None:
    """Raises InvalidInput, before any work is done, if the file could not be written there."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        where = "is a directory" if path.is_dir() else "stands in a directory that does not exist"
        raise InvalidInput(f"the {what} cannot be written: {option} {str(path)!r} {where}.")


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file of prompts that are not blank, with their numbers.

    Raises:
        InvalidInput: it cannot be read, or holds nothing.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the prompts file {str(path)!r} cannot be read: {error}") from error
    found = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InvalidInput(f"the prompts file {str(path)!r} is empty: give one prompt a line.")
    return found
