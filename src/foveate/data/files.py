"""Files that are written whole or not at all: what was there before is not lost half-way."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foveate.errors import CannotWrite

LONGEST = 64  # letters of a file's name in that of its temporary one: a folder has limits


def write(path: Path, content: str | bytes) -> None:
    """A file of this content, in UTF-8; on disk when this returns.

    Raises:
        CannotWrite: and then the file is what it was.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """The path of a new, empty file in the same folder and with the same ending. It takes the
    file's place when the block ends, and vanishes when the block raises. A link stays a link, to
    the new file; what is no file, such as ``/dev/stdout``, is written to as it is.

    Raises:
        CannotWrite: and then the file is what it was.
    """
    with reporting(path):
        if path.exists() and not path.is_file():
            yield path
            return
        target, part = _parts(path)
        try:
            part.open("x").close()  # never one that is there, or a link
            if target.exists():
                shutil.copymode(target, part)
            yield part
            _settle(part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Try whether :func:`replacing` could write the file, and leave everything as it is.

    Raises:
        CannotWrite: the folder does not take the file.
    """
    with reporting(path):
        if path.exists() and not path.is_file():
            path.open("ab").close()
            return
        _, part = _parts(path)
        part.open("x").close()
        part.unlink()


def _parts(path: Path) -> tuple[Path, Path]:
    """Return the file that a path leads to, and a temporary one beside it."""
    target = Path(os.path.realpath(path))
    return target, target.with_name(f"{_beginning(target)}{secrets.token_hex(8)}{target.suffix}")


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """What the system says against writing a file, as an error of ours that names it."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(
            f"{str(path)!r} cannot be written: {error.strerror or error}. What was written before "
            "is as it was. Make room or give another place, and repeat the command."
        ) from error


def sweep(path: Path) -> None:
    """Removes what kills have left of this file's temporary ones. Nobody else may be writing it."""
    beginning = _beginning(path)
    for other in path.parent.iterdir():
        if other.name.startswith(beginning) and other.suffix == path.suffix:
            with suppress(OSError):
                other.unlink()


def _beginning(path: Path) -> str:
    return f".{path.stem[:LONGEST]}-new-"


def _settle(path: Path) -> None:
    """On the disk, not only on its way there."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
