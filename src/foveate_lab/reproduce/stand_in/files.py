"""Files of a data set that is being written: all of it is there, or nothing."""

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
    """Writes into a folder beside its final place, where it is put when all is done."""

    def __init__(self, folder: Path, count: int):
        """``count`` samples are wanted of each part."""
        self.count, self._folder = count, folder
        self._part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(self._part, ignore_errors=True)

    def random(self, number: int | str) -> Random:
        """What a sample is drawn with."""
        return Random(f"stand-in/{self._folder.name}/{number}")

    def image(self, name: str, image: Image.Image) -> str:
        """Writes an image in the format that its name says; gives the name back."""
        path = self._placed(name)
        with files.reporting(path):
            image.convert("RGB").save(path)
        return name

    def json(self, name: str, value: Any) -> None:
        """Writes JSON."""
        self.text(name, json.dumps(value, indent=1, ensure_ascii=False))

    def lines(self, name: str, values: Iterable[Any]) -> None:
        """Writes lines of JSON."""
        self.text(name, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in values))

    def text(self, name: str, text: str) -> None:
        """Writes text."""
        path = self._placed(name)
        with files.reporting(path):
            path.write_text(text, encoding="utf-8")

    def done(self) -> None:
        """Puts the folder into its place."""
        with files.reporting(self._folder):
            self._part.rename(self._folder)

    def _placed(self, name: str) -> Path:
        path = self._part / name
        with files.reporting(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path
