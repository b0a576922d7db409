"""Storage for the pairs of offloaded frames: main memory, or files in a folder of one stream."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from foveate.data import files
from foveate.errors import InvalidInput

Pairs = Mapping[str, Tensor]
"""Pairs of one frame, on the CPU, by name."""

LOCK = "stream.lock"
"""A file that the stream keeps locked as long as it uses the folder."""

_FRAMES = ("frame-????????.safetensors", ".frame-????????-new-*.safetensors")
"""Files of frames, and those that a process was writing when it was killed."""


class InMemory:
    """Frames in main memory."""

    def __init__(self) -> None:
        self._frames: dict[int, Pairs] = {}

    def claim(self) -> None:
        """Do nothing: memory is not shared with other streams."""

    def put(self, number: int, pairs: Pairs) -> None:
        """Store a frame."""
        self._frames[number] = pairs

    def get(self, number: int) -> Pairs:
        """Return a frame."""
        return self._frames[number]

    def drop(self, number: int) -> None:
        """Delete a frame."""
        del self._frames[number]

    def release(self) -> None:
        """Do nothing."""


class InFolder:
    """Frames in one file each. The folder is created if it is missing."""

    def __init__(self, folder: Path):
        self._folder = folder
        # the system releases the lock of a process that ends, however it ends
        self._lock = FileLock(folder / LOCK, timeout=0.1, thread_local=False)
        self._checksums: dict[int, int] = {}

    def claim(self) -> None:
        """Make the folder this stream's own, and delete files that an ended stream left.

        Raises:
            InvalidInput: another stream uses the folder.
            CannotWrite: the folder cannot be written to.
        """
        if self._lock.is_locked:
            return
        with files.reporting(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._acquire()
            for pattern in _FRAMES:
                for file in self._folder.glob(pattern):
                    file.unlink()

    def put(self, number: int, pairs: Pairs) -> None:
        """Write a frame: all of it, or nothing.

        Raises:
            InvalidInput: another stream uses the folder.
            CannotWrite: the disk is full, or the folder cannot be written to.
        """
        self.claim()
        content = save({name: t.contiguous() for name, t in pairs.items()})
        files.write(self._file(number), content)
        self._checksums[number] = zlib.crc32(content)

    def get(self, number: int) -> Pairs:
        """Read a frame.

        Raises:
            InvalidInput: its file is missing or holds something else than was written.
        """
        path = self._file(number)
        try:
            content = path.read_bytes()
            if zlib.crc32(content) != self._checksums[number]:
                _refuse(path, "was changed since")
            return load(content)
        except (OSError, SafetensorError) as error:
            _refuse(path, f"cannot be read ({getattr(error, 'strerror', None) or error})", error)

    def drop(self, number: int) -> None:
        """Delete a frame's file; raises CannotWrite if the folder does not allow it."""
        with files.reporting(self._folder):
            self._file(number).unlink(missing_ok=True)
        self._checksums.pop(number, None)

    def release(self) -> None:
        """Let other streams use the folder."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows does not delete open files: the lock file stays
                (self._folder / LOCK).unlink(missing_ok=True)
            self._lock.release()

    def __reduce__(self) -> Any:
        raise InvalidInput(
            f"a stream that offloads into {str(self._folder)!r} cannot be copied or pickled: the "
            "folder belongs to one stream. Use save(path), and load(path, ..., folder=another)."
        )

    def _acquire(self) -> None:
        try:
            self._lock.acquire()
        except Timeout:
            raise InvalidInput(
                f"another stream offloads its frames into {str(self._folder)!r}, and a folder "
                "belongs to one stream. Close that stream, or give another folder."
            ) from None

    def _file(self, number: int) -> Path:
        return self._folder / f"frame-{number:08d}.safetensors"


def _refuse(path: Path, what: str, error: Exception | None = None) -> NoReturn:
    raise InvalidInput(
        f"the offloaded frame {str(path)!r} {what}, so the stream cannot answer from it or be "
        "saved. Load the stream from its latest save(), or close() it and begin anew."
    ) from error
