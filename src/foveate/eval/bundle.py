"""Results that are handed on: a folder of them with a manifest, which tells whether it is whole.

The manifest has the digests of the files, and the versions and the machine that made them. It is no
signature: it finds what was cut short or changed by mistake.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foveate.core import files
from foveate.data import read_record
from foveate.errors import InvalidInput
from foveate.eval.executors import versions
from foveate.eval.hardware import hardware
from foveate.eval.results import CONFIGURATION, MANIFEST, ROWS, Stored, read

SCHEMA = "foveate-bundle-1"
AGAIN = (
    "Ask whoever made it to send it again; or, if it is yours, remove {manifest} and repeat the "
    "command with --resume, which writes a new one."
)


class Bundle(NamedTuple):
    """A folder's results, and its manifest: None while a run is not finished."""

    folder: Path
    stored: Stored
    manifest: Mapping[str, Any] | None


def seal(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the manifest of finished results, whose rows these are.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    asked: dict[str, set[str]] = {}
    for row in rows:
        asked.setdefault(row["task"], set()).add(row["sample"])
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "versions": versions(),
        "hardware": hardware(),
        "questions": {task: len(samples) for task, samples in asked.items()},
        "specs": list(dict.fromkeys(row["spec"] for row in rows)),
        "rows": len(rows),
        "refused": sum("error" in row for row in rows),
        "files": {name: _measured(folder / name) for name in (CONFIGURATION, ROWS)},
    }
    path = folder / MANIFEST
    files.write(path, json.dumps({**found, "digest": _digest(found)}, indent=1) + "\n")
    return path


def read_bundles(folder: Path) -> list[Bundle]:
    """The bundle in a folder, or those of a folder that 'foveate reproduce --out' wrote.

    Raises:
        InvalidInput: there is none, or one is not as its manifest says.
    """
    inside = sorted(path.parent for path in (folder / "rows").glob(f"*/{CONFIGURATION}"))
    if (folder / CONFIGURATION).exists() or not inside:
        inside = [folder]
    return [read_bundle(one) for one in inside]


def read_bundle(folder: Path) -> Bundle:
    """A folder of results, checked against its manifest if it has one.

    Raises:
        InvalidInput: it holds no results, or they are not what the manifest says.
    """
    manifest = _manifest(folder) if (folder / MANIFEST).exists() else None
    if manifest is not None:
        for name in (CONFIGURATION, ROWS):
            _check(folder / name, manifest["files"].get(name))
    return Bundle(folder, read(folder), manifest)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    found = dict(read_record(path).held)
    if found.get("schema") != SCHEMA:
        raise InvalidInput(
            f"{str(path)!r} has schema={found.get('schema')!r}, and this version of Foveate reads "
            f"{SCHEMA!r}. Read it with the version that wrote it."
        )
    said = found.pop("digest", None)
    if said != _digest(found) or not isinstance(found.get("files"), dict):
        raise InvalidInput(
            f"{str(path)!r} was changed after it was written: its digest is not that of what it "
            f"says. {AGAIN.format(manifest=MANIFEST)}"
        )
    return found


def _check(path: Path, said: Any) -> None:
    """Raises InvalidInput unless a file is as the manifest says."""
    there = _measured(path) if path.exists() else None
    if there == said:
        return
    size = there["bytes"] if there else "no"
    told = said.get("bytes") if isinstance(said, dict) else None
    what = (
        f"has {size} bytes where the manifest says {told}"
        if size != told
        else "has as many bytes as the manifest says, and other ones"
    )
    raise InvalidInput(
        f"{str(path)!r} {what}: it was cut short or changed after it was written. "
        f"{AGAIN.format(manifest=MANIFEST)}"
    )


def _measured(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def _digest(found: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
