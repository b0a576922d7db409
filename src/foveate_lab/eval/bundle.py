"""Results that are handed on: a folder of them with a manifest, which tells whether it is whole.

The manifest has the digests of the files, and the versions and the machine that made them. It is no
signature: it finds what was cut short or changed by mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foveate.loading.hardware import hardware, versions_of_results
from foveate.profiles import manifest as manifests
from foveate_lab.eval.results import CONFIGURATION, MANIFEST, ROWS, Stored, read

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
    questions: dict[str, set[str]] = {}
    for row in rows:
        questions.setdefault(row["task"], set()).add(row["sample"])
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "versions": versions_of_results(),
        "hardware": hardware(),
        "questions": {task: len(samples) for task, samples in questions.items()},
        "specs": list(dict.fromkeys(row["spec"] for row in rows)),
        "rows": len(rows),
        "refused": sum("error" in row for row in rows),
    }
    return manifests.write(folder / MANIFEST, manifest, (CONFIGURATION, ROWS))


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
    place, remedy = folder / MANIFEST, AGAIN.format(manifest=MANIFEST)
    manifest = manifests.read(place, SCHEMA, remedy) if place.exists() else None
    if manifest is not None:
        for name in (CONFIGURATION, ROWS):
            manifests.check(folder / name, manifest["files"].get(name), remedy)
    return Bundle(folder, read(folder), manifest)
