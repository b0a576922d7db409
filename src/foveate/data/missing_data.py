"""Detection of missing data: archives to unpack, incomplete downloads, pointers of Git LFS."""

from __future__ import annotations

from pathlib import Path

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".7z", ".rar")
PARTS = (".incomplete", ".part", ".partial", ".crdownload", ".aria2")
DOWNLOADS = ".cache/huggingface/download"  # the hub's client stores incomplete downloads there
POINTER = b"version https://git-lfs.github.com/spec/"
NAMED = 4  # maximum number of files that a sentence names


def leftovers(folder: Path) -> str:
    """Return a sentence, after a space, on archives to unpack or downloads to repeat; or ""."""
    there = sorted(path.name for path in folder.glob("*") if path.is_file())
    waiting = sorted(str(path.relative_to(folder)) for path in folder.glob(f"{DOWNLOADS}/**/*"))
    parts = [name for name in (*there, *waiting) if name.endswith(PARTS)]
    archives = [name for name in there if name.lower().endswith(ARCHIVES)]
    if parts:
        return f" A download is incomplete: {_join_names(parts)}. Resume it, or start it again."
    if archives:
        return f" Not unpacked: {_join_names(archives)}. Unpack it in this folder."
    return ""


def is_pointer(content: bytes) -> bool:
    """Return True if a file's content is a Git LFS pointer instead of the downloaded file."""
    return content.startswith(POINTER)


def listing(folder: Path) -> str:
    """Return the first names in a folder as a text; "nothing" for an empty one."""
    there = sorted(path.name for path in folder.glob("*") if not path.name.startswith("."))
    return _join_names(there) if there else "nothing"


def _join_names(names: list[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
