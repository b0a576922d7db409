"""Results on disk: one JSON line for each answer, and one file that says how they were made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.core import lines
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
        self.rows: list[dict[str, Any]] = lines.read(folder / ROWS)
        lines.write(folder / ROWS, self.rows)
        if not (folder / CONFIGURATION).exists():
            lines.replace(folder / CONFIGURATION, json.dumps(whole, indent=1) + "\n")
        self._done = {key_of(row) for row in self.rows}

    def __contains__(self, key: object) -> bool:
        return key in self._done

    def add(self, row: Mapping[str, Any]) -> None:
        """One more row, unless it is there; on disk when this returns."""
        if key_of(row) in self._done:
            return
        lines.append(self.folder / ROWS, row)
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
    return configuration, lines.read(folder / ROWS)


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
