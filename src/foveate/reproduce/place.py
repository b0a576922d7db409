"""Where a model of an experiment is loaded from, and how it reads images."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from foveate.errors import InvalidInput, InvalidParameter
from foveate.eval.model import DeviceMap, Loaded, is_shipped, load

END = 2**20  # bytes at either end of a file of weights that its digest is of
WEIGHTS = (".safetensors", ".bin")


class Place(NamedTuple):
    """Where a model is, and whether its images are padded: rows and profiles belong to both."""

    at: str
    pad_images: bool

    @property
    def folder(self) -> str:
        """What its folders are called."""
        return slug(self.at) + ("-padded" if self.pad_images else "")

    @property
    def weights(self) -> str | None:
        """A digest of a directory's configuration, and of the sizes and both ends of its weights'
        files: the same for a copy of it, wherever that is. None for the name of a model.
        """
        folder = Path(self.at).expanduser()
        return _digest(folder) if folder.is_dir() and not is_shipped(self.at) else None

    def load(self, trust_remote_code: bool, device_map: DeviceMap | None) -> Loaded:
        """The model there.

        Raises:
            InvalidInput: its images are to be padded, and it is no LLaVA-1.5.
        """
        try:
            return load(self.at, trust_remote_code, device_map, pad_images=self.pad_images)
        except InvalidParameter as error:
            if not self.pad_images:
                raise
            raise InvalidInput(
                f"{self.at!r} stands for LLaVA-1.5, whose images the papers pad to squares, and "
                "those of its processor cannot be. Give a LLaVA-1.5, as the hub has it or as "
                "foveate convert makes it."
            ) from error


def slug(place: str) -> str:
    """A place as the name of a folder."""
    name = re.sub(r"[^\w.-]+", "_", place.rstrip("/").rpartition("/")[2]).strip("._")
    if not name:
        raise InvalidInput(f"{place!r} is no place of a model.")
    return name


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name == "config.json" or path.suffix in WEIGHTS:
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            with path.open("rb") as file:
                digest.update(file.read(END))
                file.seek(-min(END, size), os.SEEK_END)
                digest.update(file.read(END))
    return digest.hexdigest()[:16]
