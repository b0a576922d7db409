"""JSON lines files that stay valid if the process is killed or the disk is full."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import files


class Lines(NamedTuple):
    """Content of a file: its values, lines that are no JSON; ``torn``: the last has no line end."""

    values: list[Any]
    damaged: list[bytes]
    torn: bool


def read(path: Path) -> list[Any]:
    """Return the values of all complete lines; none if the file does not exist.

    Raises:
        ValueError: a line is no JSON.
    """
    content = sorted_out(path)
    if content.damaged:
        raise ValueError(f"the line {content.damaged[0][:80]!r} is no JSON")
    return content.values


def sorted_out(path: Path) -> Lines:
    """Return the values of all complete lines, and separately the lines that are no JSON."""
    *complete, rest = (path.read_bytes() if path.exists() else b"").split(b"\n")
    content = Lines([], [], bool(rest))
    for line in complete:
        try:
            content.values.append(json.loads(line.decode("utf-8")))
        except (ValueError, RecursionError):
            content.damaged.append(line)
    return content


def append(path: Path, value: Any) -> None:
    """Append a line, which is on disk when this returns; an incomplete last line is ended first.

    Raises:
        CannotWrite: the file cannot be written; it is unchanged.
    """
    line = json.dumps(value).encode() + b"\n"
    with files.reporting(path):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            _append(file, line)
        finally:
            os.close(file)


def _append(file: int, line: bytes) -> None:
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        while line:
            line = line[os.write(file, line) :]
        os.fsync(file)
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise


def write(path: Path, values: Iterable[Any]) -> None:
    """Write the complete file atomically.

    Raises:
        CannotWrite: the file cannot be written; it is unchanged.
    """
    files.write(path, "".join(json.dumps(value) + "\n" for value in values))
