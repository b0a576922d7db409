"""Rows by what they are of; and how they name the files of a folder that may be moved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MOVES = "'./"
"""How a spec begins to name a file of the folder that its results lie in."""
Key = tuple[str, str, str]
"""Task, sample, spec."""


class HeldRows:
    """Rows by key. One that says that its sample failed is there, but not in these: it is to be
    tried again. ``root`` is a folder that moves with its results: files below it that specs name
    are written relative to it, as "./FILE", and are here the files that they are now.
    """

    def __init__(self, rows: Iterable[dict[str, Any]], root: Path | None = None):
        self._root = root and f"'{root.resolve().as_posix()}/"
        self._rows = {key_of(row): row for row in map(self._here, rows)}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, each key once."""
        return list(self._rows.values())

    def __contains__(self, key: object) -> bool:
        return key in self._rows and "error" not in self._rows[key]

    def _here(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "spec": row["spec"].replace(MOVES, self._root)} if self._root else row

    def _stored(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "spec": row["spec"].replace(self._root, MOVES)} if self._root else row


def key_of(row: Mapping[str, Any]) -> Key:
    """What a row is of."""
    return row["task"], row["sample"], row["spec"]
