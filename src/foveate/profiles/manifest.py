"""Manifests: what a folder that is handed on holds, with a digest of each file and of themselves.

They are no signature: they find what was cut short or changed by mistake.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.data import files, read_record
from foveate.errors import InvalidInput
from foveate.policies.parameters import shown


def write(path: Path, manifest: Mapping[str, Any], names: tuple[str, ...]) -> Path:
    """Writes the manifest ``path`` of the files of these names beside it.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    whole = {**manifest, "files": {name: measured(path.with_name(name)) for name in names}}
    files.write(path, json.dumps({**whole, "digest": digest(whole)}, indent=1) + "\n")
    return path


def read(path: Path, schema: str, remedy: str) -> dict[str, Any]:
    """What a manifest says, without its digest; ``remedy`` is the way out of one that was
    changed.

    Raises:
        InvalidInput: it cannot be read, is of another schema, or was changed.
    """
    manifest = dict(read_record(path).fields)
    if manifest.get("schema") != schema:
        raise InvalidInput(
            f"{str(path)!r} has schema={shown(manifest.get('schema'))}, and this version of "
            f"Foveate reads {schema!r}. Read it with the version that wrote it."
        )
    said = manifest.pop("digest", None)
    if said != digest(manifest) or not isinstance(manifest.get("files"), dict):
        raise InvalidInput(
            f"{str(path)!r} was changed after it was written: its digest is not that of what it "
            f"says. {remedy}"
        )
    return manifest


def check(path: Path, said: Any, remedy: str) -> None:
    """Raises InvalidInput unless a file is as the manifest says."""
    there = measured(path) if path.exists() else None
    if there == said:
        return
    size = there["bytes"] if there else "no"
    sizes = said.get("bytes") if isinstance(said, dict) else None
    what = (
        f"has {size} bytes where the manifest says {sizes}"
        if size != sizes
        else "has as many bytes as the manifest says, and other ones"
    )
    raise InvalidInput(
        f"{str(path)!r} {what}: it was cut short or changed after it was written. {remedy}"
    )


def measured(path: Path) -> dict[str, Any]:
    """A file's size and digest."""
    with path.open("rb") as file:
        hexdigest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": hexdigest}


def digest(manifest: Mapping[str, Any]) -> str:
    """Of all that a manifest says but its digest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
