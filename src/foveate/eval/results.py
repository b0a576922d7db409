"""Results on disk: one JSON line for each answer, and one file that says how they were made."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.core.errors import InvalidInput

SCHEMA = "foveate-results-1"
CONFIGURATION, ROWS = "run.json", "rows.jsonl"
Key = tuple[str, str, str]
"""Task, sample, spec."""


class Results:
    """A folder that grows row by row, and is whole at any moment.

    Raises:
        InvalidInput: the folder holds results, and this is not to go on with them; or they were
            made otherwise.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any], *, resume: bool):
        self.folder = folder
        whole = {"schema": SCHEMA, **configuration}
        if (folder / CONFIGURATION).exists():
            _check(folder, whole, resume)
        folder.mkdir(parents=True, exist_ok=True)
        self.rows = _whole_lines(folder / ROWS)
        _replace(folder / ROWS, "".join(json.dumps(row) + "\n" for row in self.rows))
        if not (folder / CONFIGURATION).exists():
            _replace(folder / CONFIGURATION, json.dumps(whole, indent=1) + "\n")
        self._done = {key_of(row) for row in self.rows}

    def __contains__(self, key: object) -> bool:
        return key in self._done

    def add(self, row: Mapping[str, Any]) -> None:
        """One more row, unless it is there; on disk when this returns."""
        if key_of(row) in self._done:
            return
        with (self.folder / ROWS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(dict(row))
        self._done.add(key_of(row))


def key_of(row: Mapping[str, Any]) -> Key:
    """What a row is of."""
    return row["task"], row["sample"], row["spec"]


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How the results in a folder were made, and the rows so far.

    Raises:
        InvalidInput: it holds none.
    """
    try:
        configuration = json.loads((folder / CONFIGURATION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{str(folder)!r} holds no results ({error}). Give a folder that 'foveate eval --out' "
            "wrote."
        ) from error
    return configuration, _whole_lines(folder / ROWS)


def _check(folder: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    if not resume:
        raise InvalidInput(
            f"{str(folder)!r} holds results already. Go on with --resume, or choose another folder."
        )
    there, _ = read(folder)
    for name, value in wanted.items():
        if name != "versions" and there.get(name) != value:
            raise InvalidInput(
                f"{str(folder)!r} holds results of {name}={there.get(name)!r}, not {value!r}. "
                "Repeat the command as it was, or choose another folder."
            )


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """All lines but the last, if a kill cut that short."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.new")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
