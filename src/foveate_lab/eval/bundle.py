"""Bundles: folders of finished results with a manifest, for checking that they are complete.

The manifest has digests of the files, versions, and the machine. It is not a signature: it detects
files that were truncated or changed by mistake.
"""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import files
from foveate.loading.hardware import hardware, versions_of_results
from foveate.profiles import manifest as manifests
from foveate_lab.eval.results import CONFIGURATION, MANIFEST, ROWS, Stored, read

SCHEMA = "foveate-bundle-1"
AGAIN = (
    "Ask whoever made it to send it again; or, if it is yours, remove {manifest} and repeat the "
    "command with --resume, which writes a new one."
)


class Bundle(NamedTuple):
    """Results of a folder with their manifest, which is None until the run is finished."""

    folder: Path
    stored: Stored
    manifest: Mapping[str, Any] | None


def seal(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the manifest of finished results that have these rows.

    Raises:
        CannotWrite: the disk is full, or the folder is not writable.
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


def pack(folder: Path) -> Path:
    """Write the archive of a finished folder that is handed in, next to the folder.

    Raises:
        CannotWrite: the disk is full, or the directory is not writable.
    """
    path = folder.with_name(f"{folder.resolve().name}.tar.gz")
    with files.replacing(path) as part, tarfile.open(part, "w:gz") as archive:
        for name in (CONFIGURATION, ROWS, MANIFEST):
            archive.add(folder / name, f"{folder.resolve().name}/{name}")
    return path


def read_bundles(folder: Path) -> list[Bundle]:
    """Read the bundle of a folder, or the bundles that 'foveate reproduce --out' wrote.

    Raises:
        InvalidInput: no results, or files that differ from their manifest.
    """
    inside = sorted(path.parent for path in (folder / "rows").glob(f"*/{CONFIGURATION}"))
    if (folder / CONFIGURATION).exists() or not inside:
        inside = [folder]
    return [read_bundle(path) for path in inside]


def read_bundle(folder: Path) -> Bundle:
    """Read a folder of results, checked against its manifest if it has one.

    Raises:
        InvalidInput: no results, or files that differ from the manifest.
    """
    path, remedy = folder / MANIFEST, AGAIN.format(manifest=MANIFEST)
    manifest = manifests.read(path, SCHEMA, remedy) if path.exists() else None
    if manifest is not None:
        for name in (CONFIGURATION, ROWS):
            manifests.check(folder / name, manifest["files"].get(name), remedy)
    return Bundle(folder, read(folder), manifest)
