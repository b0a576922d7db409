"""What lies in a folder in the place of data: archives that nobody unpacked, downloads that ended
early, pointers of Git LFS.
"""

from __future__ import annotations

from pathlib import Path

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".7z", ".rar")
PARTS = (".incomplete", ".part", ".partial", ".crdownload", ".aria2")
DOWNLOADS = ".cache/huggingface/download"  # where the hub's client has what it has not ended
POINTER = b"version https://git-lfs.github.com/spec/"
NAMED = 4  # files at most that a sentence names


def leftovers(folder: Path) -> str:
    """A sentence, with a blank before it, on what has to be unpacked or downloaded once more;
    nothing where neither is there.
    """
    there = sorted(path.name for path in folder.glob("*") if path.is_file())
    waiting = sorted(str(path.relative_to(folder)) for path in folder.glob(f"{DOWNLOADS}/**/*"))
    parts = [name for name in (*there, *waiting) if name.endswith(PARTS)]
    archives = [name for name in there if name.lower().endswith(ARCHIVES)]
    if parts:
        return f" A download did not end: {_named(parts)}. Go on with it, or start it again."
    if archives:
        return f" Not unpacked: {_named(archives)}. Unpack it in this folder."
    return ""


def is_pointer(held: bytes) -> bool:
    """Whether a file is what Git LFS has in the place of one that was not downloaded."""
    return held.startswith(POINTER)


def listing(folder: Path) -> str:
    """The first names in a folder, in words."""
    there = sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))
    return _named(there) if there else "nothing"


def _named(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
