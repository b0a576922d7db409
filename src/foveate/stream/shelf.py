"""Where the pairs of frames stand that left a stream's memory: in main memory, or in files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from foveate.core import files

Pairs = Mapping[str, Tensor]
"""Of one frame, on the CPU, by name."""


class InMemory:
    """In main memory."""

    def __init__(self) -> None:
        self._held: dict[int, Pairs] = {}

    def put(self, number: int, pairs: Pairs) -> None:
        """Keeps a frame's."""
        self._held[number] = pairs

    def get(self, number: int) -> Pairs:
        """A frame's."""
        return self._held[number]

    def drop(self, number: int) -> None:
        """A frame is not needed any more."""
        del self._held[number]


class InFolder:
    """In a file each; the folder is made if it is not there.

    Raises:
        CannotWrite: the disk is full, or the folder cannot be written to.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        with files.reporting(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def put(self, number: int, pairs: Pairs) -> None:
        """Writes a frame's, whole or not at all."""
        with files.replacing(self._file(number)) as part:
            save_file({name: t.contiguous() for name, t in pairs.items()}, part)

    def get(self, number: int) -> Pairs:
        """Reads a frame's."""
        return load_file(self._file(number))

    def drop(self, number: int) -> None:
        """Deletes a frame's."""
        self._file(number).unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self._folder / f"frame-{number:08d}.safetensors"
