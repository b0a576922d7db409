"""Rows of a folder of reproductions, in one folder for each model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.bundle import seal
from foveate_lab.eval.keyed_rows import HeldRows, key_of
from foveate_lab.eval.results import ROWS, Results, read, stored_rows
from foveate_lab.reproduce.models import Place


class Rows:
    """Rows in ``out``; ``made`` returns the configuration that a model's rows have to agree in. A
    model's rows are opened, and locked, when they are first needed; ``read_only`` takes no lock.
    """

    def __init__(
        self, out: Path, configuration: Callable[[Place], dict[str, Any]], read_only: bool
    ):
        self.out, self.configuration, self.read_only = out, configuration, read_only
        self._opened: dict[Place, Results] = {}
        self._looked_at: dict[Place, HeldRows] = {}

    def close(self) -> None:
        """Release the locks."""
        for results in self._opened.values():
            results.__exit__()
        self._opened.clear()

    def folder(self, location: Place) -> Path:
        """Return the folder with the rows of a model."""
        return self.out / "rows" / location.folder

    def of(self, location: Place) -> HeldRows:
        """Return the rows of a model.

        Raises:
            InvalidInput: they have another configuration, or another process writes them.
        """
        if not self.read_only:
            return self._open(location)
        if location not in self._looked_at:
            self._looked_at[location] = stored_rows(
                self.folder(location), self.configuration(location), self.out
            )
        return self._looked_at[location]

    def add(self, location: Place, row: Mapping[str, Any]) -> None:
        """Add a row of a model; it is on disk when this returns.

        Raises:
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        self._open(location).add(row)

    def take(self, location: Place, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of other folders, all at once.

        Raises:
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        self._open(location).take(rows)

    def sort(self) -> None:
        """Sort rows by task, index of the sample, and spec, so that their order does not depend on
        who made them when.
        """

        def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
            task, sample, spec = key_of(row)
            return task, row.get("place", 0), sample, spec != FULL, spec

        for results in self._opened.values():
            there = results.rows
            if (rows := sorted(there, key=order)) != there:
                results.sort(map(key_of, rows))

    def seal(self) -> None:
        """Write a manifest for each model that has rows, so that they can be shared.

        Raises:
            CannotWrite: the disk is full, or the folder is not to be written to.
        """
        for rows in sorted((self.out / "rows").glob(f"*/{ROWS}")):
            seal(rows.parent, read(rows.parent).rows)

    def _open(self, location: Place) -> Results:
        if location not in self._opened:
            self._opened[location] = Results(
                self.folder(location), self.configuration(location), resume=True, root=self.out
            )
        return self._opened[location]
