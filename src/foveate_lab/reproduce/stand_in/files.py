"""Writer of a data set: either all of it is there, or nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from foveate.data import files


class Writer:
    """Writer into a folder beside the final one, which is renamed when all is done."""

    def __init__(self, folder: Path, count: int):
        """Start a data set with ``count`` samples in each part."""
        self.count, self._folder = count, folder
        self._part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(self._part, ignore_errors=True)

    def random(self, number: int | str) -> Random:
        """Return the source of randomness of a sample."""
        return Random(f"stand-in/{self._folder.name}/{number}")

    def image(self, name: str, image: Image.Image) -> str:
        """Write an image in the format that its name says; return the name."""
        path = self._placed(name)
        with files.reporting(path):
            image.convert("RGB").save(path)
        return name

    def json(self, name: str, value: Any) -> None:
        """Write JSON."""
        self.text(name, json.dumps(value, indent=1, ensure_ascii=False))

    def lines(self, name: str, values: Iterable[Any]) -> None:
        """Write lines of JSON."""
        self.text(name, "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values))

    def text(self, name: str, text: str) -> None:
        """Write text."""
        path = self._placed(name)
        with files.reporting(path):
            path.write_text(text, encoding="utf-8")

    def done(self) -> None:
        """Rename the folder to its final name."""
        with files.reporting(self._folder):
            self._part.rename(self._folder)

    def _placed(self, name: str) -> Path:
        path = self._part / name
        with files.reporting(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path
