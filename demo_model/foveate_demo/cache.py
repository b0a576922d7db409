"""The user's cache folder: entries are written atomically, and rebuilt if their hashes differ."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


def root() -> Path:
    """Return ``$FOVEATE_CACHE``, else ``$XDG_CACHE_HOME/foveate``, else ``~/.cache/foveate``."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("FOVEATE_CACHE") or user_cache / "foveate").expanduser()


def entry(name: str, build: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, after building it if it is missing or damaged.

    Its files are listed with their SHA-256 in ``manifest.json``, which is checked at every call
    (about 0.4 s for 540 MB). It may be deleted at any time.

    Args:
        name: name of the folder, different for every version of its content.
        build: function that writes the files into an empty folder.

    Raises:
        OSError: the cache cannot be written.
    """
    folder = root() / name
    fault = _fault(folder)
    if fault is None:
        return folder
    if folder.exists():
        _log.warning("%s is damaged (%s) and is rebuilt.", folder, fault)
    root().mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root()))  # renamed when it is complete
    old = fresh.with_name(f"{fresh.name}-old")
    try:
        build(fresh)
        _list(fresh)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    except OSError:
        if _fault(folder) is not None:  # otherwise another process was faster
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return folder


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _list(folder: Path) -> None:
    files = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps(files, indent=1))


def _fault(folder: Path) -> str | None:
    """Return the reason why an entry is damaged, or None."""
    try:
        files = json.loads((folder / _MANIFEST).read_text())
        for name, digest in files.items():
            if _digest(folder / name) != digest:
                return f"{name} has changed"
    except (OSError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
