"""Where a model of an experiment is loaded from, and how it reads images."""

from __future__ import annotations

import re
from typing import NamedTuple

from foveate.errors import InvalidInput, InvalidParameter
from foveate.eval.model import DeviceMap, Loaded, load


class Place(NamedTuple):
    """Where a model is, and whether its images are padded: rows and profiles belong to both."""

    at: str
    pad_images: bool

    @property
    def folder(self) -> str:
        """What its folders are called."""
        return slug(self.at) + ("-padded" if self.pad_images else "")

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
    found = re.sub(r"[^\w.-]+", "_", place.rstrip("/").rpartition("/")[2]).strip("._")
    if not found:
        raise InvalidInput(f"{place!r} is no place of a model.")
    return found
