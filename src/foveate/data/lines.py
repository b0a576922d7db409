"""JSON lines on disk that survive a kill, or a full disk, at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import files


class Lines(NamedTuple):
    """What a file's lines hold, those that are no JSON, and whether its last line has no end."""

    values: list[Any]
    damaged: list[bytes]
    torn: bool


def read(path: Path) -> list[Any]:
    """All lines but one that a kill cut short; none if there is no such file.

    Raises:
        ValueError: a line is no JSON.
    """
    held = sorted_out(path)
    if held.damaged:
        raise ValueError(f"the line {held.damaged[0][:80]!r} is no JSON")
    return held.values


def sorted_out(path: Path) -> Lines:
    """The same, with the lines that are no JSON kept apart."""
    *whole, rest = (path.read_bytes() if path.exists() else b"").split(b"\n")
    held = Lines([], [], bool(rest))
    for line in whole:
        try:
            held.values.append(json.loads(line.decode("utf-8")))
        except (ValueError, RecursionError):
            held.damaged.append(line)
    return held


def append(path: Path, value: Any) -> None:
    """One more line; on disk when this returns. It does not stand on one that was cut short.

    Raises:
        CannotWrite: and then the file is what it was.
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
    """The whole file, all at once or not at all.

    Raises:
        CannotWrite: and then the file is what it was.
    """
    files.write(path, "".join(json.dumps(value) + "\n" for value in values))
