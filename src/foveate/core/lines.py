"""JSON lines on disk that survive a kill at any moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def read(path: Path) -> list[Any]:
    """All lines but one that a kill cut short; none if there is no such file.

    Raises:
        ValueError: a line is no JSON.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def append(path: Path, value: Any) -> None:
    """One more line; on disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, values: Iterable[Any]) -> None:
    """The whole file, all at once or not at all."""
    replace(path, "".join(json.dumps(value) + "\n" for value in values))


def replace(path: Path, text: str) -> None:
    """A file of this text, all at once or not at all."""
    part = path.with_name(f"{path.name}.new")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
