"""Atomic writing of files: after an error, the old content is unchanged."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foveate.errors import CannotWrite

LONGEST = 64  # letters of a file's name in the temporary one's: file systems limit names


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically, text in UTF-8; its content is on disk when this returns.

    Raises:
        CannotWrite: the file cannot be written; it is unchanged.
    """
    with replacing(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` at the end of the block.

    It is in the same folder, with the same suffix, and is deleted if the block raises. A symbolic
    link stays, and points to the new file. A device such as ``/dev/stdout`` is yielded itself.

    Raises:
        CannotWrite: the file cannot be written; it is unchanged.
    """
    with reporting(path):
        if path.exists() and not path.is_file():
            yield path
            return
        target, part = _target_and_part(path)
        try:
            part.open("x").close()  # "x": fails for an existing file or link
            if target.exists():
                shutil.copymode(target, part)
            yield part
            _flush(part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Check that :func:`replacing` could write the file; nothing changes.

    Raises:
        CannotWrite: the file cannot be written.
    """
    with reporting(path):
        if path.exists() and not path.is_file():
            path.open("ab").close()
            return
        _, part = _target_and_part(path)
        part.open("x").close()
        part.unlink()


def _target_and_part(path: Path) -> tuple[Path, Path]:
    """Return the file that a path resolves to, and a temporary one in the same folder."""
    target = Path(os.path.realpath(path))
    return target, target.with_name(f"{_prefix(target)}{secrets.token_hex(8)}{target.suffix}")


@contextmanager
def reporting(path: Path) -> Iterator[None]:
    """Turn an OSError into CannotWrite, whose message names the file."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(
            f"{str(path)!r} cannot be written: {error.strerror or error}. Its old content is "
            "unchanged. Free disk space or give another path, and try again."
        ) from error


def sweep(path: Path) -> None:
    """Delete temporary files that killed processes left; nobody else may be writing ``path``."""
    beginning = _prefix(path)
    for other in path.parent.iterdir():
        if other.name.startswith(beginning) and other.suffix == path.suffix:
            with suppress(OSError):
                other.unlink()


def _prefix(path: Path) -> str:
    return f".{path.stem[:LONGEST]}-new-"


def _flush(path: Path) -> None:
    """Flush the file to disk, so that the replacement survives a power failure."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
