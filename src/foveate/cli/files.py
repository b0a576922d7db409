"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from foveate.core.errors import InvalidInput


def check_writable(what: str, option: str, path: Path) -> None:
    """Raises InvalidInput, before any work is done, if the file could not be written there."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        where = "is a directory" if path.is_dir() else "stands in a directory that does not exist"
        raise InvalidInput(f"the {what} cannot be written: {option} {str(path)!r} {where}.")
