"""Rows by key, and specs that name files of a movable folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MOVES = "'./"
"""Start of a file name in a spec, for files in the folder of the results."""
Key = tuple[str, str, str]
"""Key of a row: task, sample and spec."""


class HeldRows:
    """Rows by key.

    A row with an error is among ``rows``, but its key is not ``in`` this object, so that it is
    tried again. ``root`` is a folder that moves together with its results: specs store files below
    it as "./FILE", and rows here have their current paths.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], root: Path | None = None):
        self._root = root and f"'{root.resolve().as_posix()}/"
        self._rows = {key_of(row): row for row in map(self._here, rows)}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, one per key."""
        return list(self._rows.values())

    def __contains__(self, key: object) -> bool:
        return key in self._rows and "error" not in self._rows[key]

    def _here(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "spec": row["spec"].replace(MOVES, self._root)} if self._root else row

    def _stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "spec": row["spec"].replace(self._root, MOVES)} if self._root else row


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the task, sample and spec of a row."""
    return row["task"], row["sample"], row["spec"]
