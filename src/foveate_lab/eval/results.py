"""Results on disk: one JSON line per answer, and a file with the run's configuration."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import files, lines, read_record
from foveate.errors import InvalidInput
from foveate_lab.eval.keyed_rows import HeldRows, Key, key_of

SCHEMA = "foveate-results-1"
CONFIGURATION, ROWS, DAMAGED, LOCK = "run.json", "rows.jsonl", "rows.damaged.jsonl", ".lock"
MANIFEST = "bundle.json"  # for finished results: foveate_lab/eval/bundle.py
UNSAID = {"strict": False, "batch": 1}
"""Defaults of settings that results of earlier versions do not record."""
MAY_LACK = ("weights",)
"""Settings that are compared only if the results record them."""


class Stored(NamedTuple):
    """Results in a folder: configuration, rows (one per key), and lines that are not rows."""

    configuration: dict[str, Any]
    rows: list[dict[str, Any]]
    damaged: list[bytes]


class Results(HeldRows, AbstractContextManager["Results"]):
    """Folder of results that grows row by row and is consistent at any time.

    Only one process at a time can write it. Opening it removes the manifest of finished results.
    Lines that are not rows are moved to ``rows.damaged.jsonl``.

    Raises:
        InvalidInput: results exist and ``resume`` is false, or their configuration differs or is
            missing, or another process is writing them.
        CannotWrite: the disk is full, or the folder is not writable.
    """

    def __init__(
        self,
        folder: Path,
        configuration: Mapping[str, Any],
        *,
        resume: bool,
        root: Path | None = None,
    ):
        super().__init__((), root)
        self.folder = folder
        with files.reporting(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder)
        try:
            self._open({"schema": SCHEMA, **configuration}, resume)
        except BaseException:
            self._lock.close()
            raise

    def __exit__(self, *error: Any) -> None:
        self._lock.close()

    def _open(self, configuration: Mapping[str, Any], resume: bool) -> None:
        _check(self.folder, configuration, resume)
        for name in (CONFIGURATION, ROWS, DAMAGED, MANIFEST):
            files.sweep(self.folder / name)
        with files.reporting(self.folder / MANIFEST):
            (self.folder / MANIFEST).unlink(missing_ok=True)
        if not (self.folder / CONFIGURATION).exists():
            files.write(self.folder / CONFIGURATION, json.dumps(configuration, indent=1) + "\n")
        contents = lines.sorted_out(self.folder / ROWS)
        rows, self.damaged = _rows(contents)
        self._rows = {key_of(row): row for row in map(self._here, rows)}
        if self.damaged:
            _set_aside(self.folder / DAMAGED, self.damaged)
        if self.damaged or contents.torn or len(contents.values) > len(rows):
            lines.write(self.folder / ROWS, rows)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row, unless its sample has an answer; it is on disk on return. Non-finite numbers
        become null, because JSON has none.

        Raises:
            CannotWrite: the row is then not added, and all others are unchanged.
        """
        if (key := key_of(row)) not in self:
            lines.append(self.folder / ROWS, self._stored(stored := _finite(row)))
            self._rows[key] = stored

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows of other results in one write; existing answers stay.

        Raises:
            CannotWrite: the rows are then unchanged.
        """
        merged = dict(self._rows)
        for row in rows:
            key = key_of(row)
            if key not in merged or ("error" in merged[key] and "error" not in row):
                merged[key] = _finite(row)
        lines.write(self.folder / ROWS, map(self._stored, merged.values()))
        self._rows = merged

    def sort(self, order: Iterable[Key]) -> None:
        """Rewrite the file in this order of keys; rows of other keys come last."""
        ranks = {key: rank for rank, key in enumerate(order)}
        rows = sorted(self.rows, key=lambda row: ranks.get(key_of(row), len(ranks)))
        lines.write(self.folder / ROWS, map(self._stored, rows))
        self._rows = {key_of(row): row for row in rows}


def read(folder: Path) -> Stored:
    """Read the results in a folder without changing it.

    Raises:
        InvalidInput: the folder has no results.
    """
    try:
        configuration = dict(read_record(folder / CONFIGURATION).fields)
    except InvalidInput as error:
        exists = (folder / CONFIGURATION).exists()
        reason = str(error) if exists else f"it has no {CONFIGURATION}."
        raise InvalidInput(
            f"{str(folder)!r} holds no results: {reason} Give a folder that 'foveate eval --out' "
            "wrote."
        ) from error
    return Stored(configuration, *_rows(lines.sorted_out(folder / ROWS)))


def stored_rows(
    folder: Path, configuration: Mapping[str, Any], root: Path | None = None
) -> HeldRows:
    """Return the rows so far of results with this configuration, without changing the folder.
    Another process may be writing them.

    Raises:
        InvalidInput: their configuration differs.
    """
    _check(folder, {"schema": SCHEMA, **configuration}, resume=True)
    return HeldRows(read(folder).rows if (folder / CONFIGURATION).exists() else (), root)


def _rows(contents: lines.Lines) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Return the last row of each key, and lines that are not rows."""
    rows: dict[Key, dict[str, Any]] = {}
    damaged = list(contents.damaged)
    for value in contents.values:
        if isinstance(value, dict) and all(
            isinstance(value.get(name), str) for name in ("task", "sample", "spec")
        ):
            rows[key_of(value)] = value
        else:
            damaged.append(json.dumps(value).encode())
    return list(rows.values()), damaged


def _set_aside(path: Path, damaged: Iterable[bytes]) -> None:
    """Append damaged lines to those set aside before."""
    before = path.read_bytes() if path.exists() else b""
    files.write(path, before + b"".join(line + b"\n" for line in damaged))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _locked(folder: Path) -> Any:
    """Lock the folder for this process by an open file; the lock ends with the process."""
    import fcntl  # not on all systems; reading results does not need it

    with files.reporting(folder / LOCK):
        file = (folder / LOCK).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise InvalidInput(
            f"another process is writing results into {str(folder)!r}. Wait until it ends, or "
            "choose another folder."
        ) from error
    return file


def _check(folder: Path, configuration: Mapping[str, Any], resume: bool) -> None:
    """Check that the folder is empty, or may be resumed with the same configuration."""
    if not (folder / CONFIGURATION).exists():
        if (folder / ROWS).exists() and (folder / ROWS).stat().st_size:
            raise InvalidInput(
                f"{str(folder)!r} has rows, but no {CONFIGURATION} with their settings. Restore "
                "that file, or choose another folder."
            )
        return
    if not resume:
        raise InvalidInput(
            f"{str(folder)!r} has results already. Continue with --resume, or give another folder."
        )
    stored = UNSAID | read(folder).configuration
    for name, value in configuration.items():
        if name not in stored and name in MAY_LACK:
            continue
        if name != "versions" and stored.get(name) != value:
            raise InvalidInput(
                f"{str(folder)!r} holds results of {name}={stored.get(name)!r}, not {value!r}. "
                "Use the same options as before, or choose another folder."
            )
