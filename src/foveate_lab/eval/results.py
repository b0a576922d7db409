"""Results on disk: one JSON line for each answer, and one file that says how they were made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import files, lines, read_record
from foveate.errors import InvalidInput
from foveate_lab.eval.held import HeldRows, Key, key_of

SCHEMA = "foveate-results-1"
CONFIGURATION, ROWS, DAMAGED, LOCK = "run.json", "rows.jsonl", "rows.damaged.jsonl", ".lock"
MANIFEST = "bundle.json"  # of finished results: foveate_lab/eval/bundle.py
UNSAID = {"strict": False, "batch": 1}
"""What results of earlier versions do not say of themselves."""
MAY_LACK = ("weights",)
"""What is held against results that say it, and not against those of earlier versions."""


class Stored(NamedTuple):
    """How results were made, the rows so far, each key once, and lines that are no rows."""

    configuration: dict[str, Any]
    rows: list[dict[str, Any]]
    damaged: list[bytes]


class Results(HeldRows, AbstractContextManager["Results"]):
    """A folder that grows row by row, and is whole at any moment; one process at a time writes it.
    What was sealed is not any more: its manifest goes.

    Lines that are no rows are set aside, into ``rows.damaged.jsonl``.

    Raises:
        InvalidInput: the folder holds results, and this is not to go on with them; or they were
            made otherwise, or nothing says how; or another process is writing them.
        CannotWrite: the disk is full, or the folder is not to be written to.
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

    def _open(self, whole: Mapping[str, Any], resume: bool) -> None:
        _check(self.folder, whole, resume)
        for name in (CONFIGURATION, ROWS, DAMAGED, MANIFEST):
            files.sweep(self.folder / name)
        with files.reporting(self.folder / MANIFEST):
            (self.folder / MANIFEST).unlink(missing_ok=True)
        if not (self.folder / CONFIGURATION).exists():
            files.write(self.folder / CONFIGURATION, json.dumps(whole, indent=1) + "\n")
        contents = lines.sorted_out(self.folder / ROWS)
        rows, self.damaged = _rows(contents)
        self._rows = {key_of(row): row for row in map(self._here, rows)}
        if self.damaged:
            _set_aside(self.folder / DAMAGED, self.damaged)
        if self.damaged or contents.torn or len(contents.values) > len(rows):
            lines.write(self.folder / ROWS, rows)

    def add(self, row: Mapping[str, Any]) -> None:
        """One more row, unless its sample is answered; on disk when this returns. Numbers that are
        not finite, which JSON has no word for, become null.

        Raises:
            CannotWrite: and then the row is not there, and all others are.
        """
        if (key := key_of(row)) not in self:
            lines.append(self.folder / ROWS, self._stored(stored := _finite(row)))
            self._rows[key] = stored

    def take(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Many rows of other results at once, of which those that are answered here stay as they
        are; on disk, all or none of them, when this returns.

        Raises:
            CannotWrite: and then the rows are what they were.
        """
        taken = dict(self._rows)
        for row in rows:
            key = key_of(row)
            if key not in taken or ("error" in taken[key] and "error" not in row):
                taken[key] = _finite(row)
        lines.write(self.folder / ROWS, map(self._stored, taken.values()))
        self._rows = taken

    def sort(self, order: Iterable[Key]) -> None:
        """Rewrites the file in this order of keys, whatever the order in which they came; rows of
        other keys come last.
        """
        places = {key: place for place, key in enumerate(order)}
        rows = sorted(self.rows, key=lambda row: places.get(key_of(row), len(places)))
        lines.write(self.folder / ROWS, map(self._stored, rows))
        self._rows = {key_of(row): row for row in rows}


def read(folder: Path) -> Stored:
    """What a folder holds so far; nothing in it is changed.

    Raises:
        InvalidInput: it holds no results.
    """
    try:
        configuration = dict(read_record(folder / CONFIGURATION).fields)
    except InvalidInput as error:
        raise InvalidInput(
            f"{str(folder)!r} holds no results ({error}). Give a folder that 'foveate eval --out' "
            "wrote."
        ) from error
    return Stored(configuration, *_rows(lines.sorted_out(folder / ROWS)))


def held(folder: Path, configuration: Mapping[str, Any], root: Path | None = None) -> HeldRows:
    """What there is so far of results that are made in this way; nothing in the folder is changed,
    and another process may be writing them.

    Raises:
        InvalidInput: they were made otherwise.
    """
    _check(folder, {"schema": SCHEMA, **configuration}, resume=True)
    return HeldRows(read(folder).rows if (folder / CONFIGURATION).exists() else (), root)


def _rows(contents: lines.Lines) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The rows, of each key the last, and what is none."""
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
    """Behind what was set aside before."""
    before = path.read_bytes() if path.exists() else b""
    files.write(path, before + b"".join(line + b"\n" for line in damaged))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _locked(folder: Path) -> Any:
    """A file that is this process's as long as it is open; a kill gives it back."""
    import fcntl  # which not all systems have; results can be read on any

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


def _check(folder: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    """The folder is empty, or to be gone on with as it was begun."""
    if not (folder / CONFIGURATION).exists():
        if (folder / ROWS).exists() and (folder / ROWS).stat().st_size:
            raise InvalidInput(
                f"{str(folder)!r} holds rows, and no {CONFIGURATION} that says how they were made. "
                "Put it back, or choose another folder."
            )
        return
    if not resume:
        raise InvalidInput(
            f"{str(folder)!r} holds results already. Go on with --resume, or choose another folder."
        )
    there = UNSAID | read(folder).configuration
    for name, value in wanted.items():
        if name not in there and name in MAY_LACK:
            continue
        if name != "versions" and there.get(name) != value:
            raise InvalidInput(
                f"{str(folder)!r} holds results of {name}={there.get(name)!r}, not {value!r}. "
                "Repeat the command as it was, or choose another folder."
            )
