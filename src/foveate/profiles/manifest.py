"""Manifests of shared folders, with a digest of each file and of the manifest itself.

They are no signature: they detect incomplete files and accidental changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.data import files, read_record
from foveate.errors import InvalidInput
from foveate.policies.parameters import short_repr


def write(path: Path, manifest: Mapping[str, Any], names: tuple[str, ...]) -> Path:
    """Write a manifest of the files ``names`` in the same folder.

    Raises:
        CannotWrite: the disk is full, or the folder is not writable.
    """
    contents = {**manifest, "files": {name: measured(path.with_name(name)) for name in names}}
    files.write(path, json.dumps({**contents, "digest": digest(contents)}, indent=1) + "\n")
    return path


def read(path: Path, schema: str, remedy: str) -> dict[str, Any]:
    """Return the contents of a manifest, without its digest.

    ``remedy`` is the last sentence of the error for a changed manifest.

    Raises:
        InvalidInput: it cannot be read, has another schema, or was changed.
    """
    manifest = dict(read_record(path).fields)
    if manifest.get("schema") != schema:
        raise InvalidInput(
            f"{str(path)!r} has schema={short_repr(manifest.get('schema'))}, and this version of "
            f"Foveate reads {schema!r}. Read it with the version that wrote it."
        )
    expected = manifest.pop("digest", None)
    if expected != digest(manifest) or not isinstance(manifest.get("files"), dict):
        raise InvalidInput(
            f"{str(path)!r} was changed after it was written: its digest does not match its "
            f"contents. {remedy}"
        )
    return manifest


def check(path: Path, expected: Any, remedy: str) -> None:
    """Raise InvalidInput unless a file has the size and digest of its manifest."""
    actual = measured(path) if path.exists() else None
    if actual == expected:
        return
    size = actual["bytes"] if actual else "no"
    sizes = expected.get("bytes") if isinstance(expected, dict) else None
    what = (
        f"has {size} bytes where the manifest says {sizes}"
        if size != sizes
        else "has as many bytes as the manifest says, but other contents"
    )
    raise InvalidInput(
        f"{str(path)!r} {what}: it was cut short or changed after it was written. {remedy}"
    )


def measured(path: Path) -> dict[str, Any]:
    """Return a file's size and digest."""
    with path.open("rb") as file:
        hexdigest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": hexdigest}


def digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a manifest without its own digest."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
