"""ScreenSpot-v2 in all its forms, with boxes as left, top, width and height in pixels.

The authors' repository has three JSON files and an archive of images; lmms-lab's has the same boxes
in parquet, without the screen, which the image's name says; HongxinLi's has shares of width and
height, from corner to corner; VLMEvalKit's three tables have the boxes as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from foveate.data import Folder, Record, listed, read_records, read_table, table_images
from foveate.data.tables import count_table
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.forms import BenchmarkForm, BenchmarkRow, Forms, Published
from foveate_lab.eval.benchmarks.release import Release
from foveate_lab.eval.benchmarks.shards import Shards, on_hub
from foveate_lab.eval.benchmarks.tabled import KIT

SCREENS = ("mobile", "desktop", "web")
BEGINNINGS = {"mobile": "mobile", "pc": "desktop", "desktop": "desktop", "web": "web"}
PLACES = ("screenspotv2_image/{}", "{}", "ScreenSpot_v2/screenspotv2_image/{}")


def forms_of(screen: str | None = None) -> Mapping[str, Forms[BenchmarkRow]]:
    """All forms, of one screen or of the three."""
    screens = (screen,) if screen else SCREENS
    release = Release(
        published=Published(
            "the authors",
            "screenspot_*_v2.json and screenspotv2_image/",
            "https://huggingface.co/datasets/OS-Copilot/ScreenSpot-v2",
        ),
        splits={"test": tuple(f"screenspot_{name}_v2.json" for name in screens)},
        read=_released,
    )
    pixels = Shards(
        published=on_hub("lmms-lab/ScreenSpot-v2", "train"),
        task_split="train",
        columns=("instruction", "bbox", "data_type"),
        optional=("img_filename", "file_name", "data_source"),
        made=_with_screen,
    )
    shares = Shards(
        published=on_hub("HongxinLi/ScreenSpot_v2", "test"),
        task_split="test",
        columns=("instruction", "bbox", "data_type", "file_name"),
        optional=("data_source",),
        made=_in_pixels,
    )
    tables = tuple(f"ScreenSpot_v2_{name.capitalize()}.tsv" for name in screens)
    kit = Tables(
        tables=tables,
        published=Published(
            "VLMEvalKit",
            "VLMEvalKit's ScreenSpot_v2_Mobile.tsv, ScreenSpot_v2_Desktop.tsv and "
            "ScreenSpot_v2_Web.tsv, beside screenspotv2_image/ where the images are not in them",
            KIT,
        ),
    )
    return {"": Forms("ScreenSpot-v2", (release, pixels, shares, kit))}


def _released(folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
    for path in paths:
        screen = path.stem.split("_")[1]
        for record in read_records(path):
            yield BenchmarkRow(
                record.also(screen=screen), folder.image(record, "img_filename", *PLACES)
            )


def _with_screen(record: Record, image: Image.Image) -> Record:
    """What kind of screen it is, by how the name of its image begins."""
    cell = record.held.get("image")
    path = cell.get("path") if isinstance(cell, Mapping) else None
    named = record if "file_name" in record.held else record.also(file_name=path)
    name = named.text("img_filename", "file_name")
    beginning = name.rpartition("/")[2].partition("_")[0].lower()
    if beginning not in BEGINNINGS:
        raise InvalidInput(
            f"{record.where}: the image is called {name!r}; its name has to begin with "
            f"{', '.join(f'{one}_' for one in BEGINNINGS)}, which says what screen it is of."
        )
    return record.also(screen=BEGINNINGS[beginning])


def _in_pixels(record: Record, image: Image.Image) -> Record:
    left, top, right, bottom = shares = record.numbers("bbox", 4)
    if not all(0 <= share <= 1 for share in shares):
        raise InvalidInput(
            f"{record.where}: the field 'bbox' is {list(shares)}; it has to be shares of 0 to 1."
        )
    wide, high = image.size
    box = [left * wide, top * high, (right - left) * wide, (bottom - top) * high]
    return _with_screen(record, image).also(bbox=box)


@dataclass(frozen=True, kw_only=True)
class Tables(BenchmarkForm[BenchmarkRow]):
    """VLMEvalKit's tables, one a screen, whose images are in them or in the authors' folder."""

    tables: tuple[str, ...]

    def find(self, folder: Folder) -> list[Path]:
        """The tables: all of them, or none.

        Raises:
            InvalidInput: some are missing.
        """
        tables = [path for name in self.tables for path in folder.find(name)]
        if tables and len(tables) < len(self.tables):
            there = {path.name for path in tables}
            lost = ", ".join(name for name in self.tables if name not in there)
            raise InvalidInput(
                f"{str(folder.path)!r} holds no {lost} beside {tables[0].name}. Is the download "
                "whole?"
            )
        return tables

    def split(self, paths: Sequence[Path]) -> str:
        """There is but one."""
        return "test"

    def count(self, paths: Sequence[Path]) -> int:
        """How many rows they have."""
        return sum(map(count_table, paths))

    def rows(self, folder: Folder, paths: Sequence[Path]) -> Iterator[BenchmarkRow]:
        """The rows with their images."""
        for path in paths:
            screen = path.stem.rpartition("_")[2].lower()
            records = read_table(path, ("index", "bbox", "data_type"))
            inside = bool(records) and records[0].has("image")
            images = table_images(records) if inside else _beside(folder, records)
            for record, image in zip(records, images, strict=True):
                said = record.text("instruction", "question")
                yield BenchmarkRow(
                    listed(record, "bbox").also(screen=screen, instruction=said), image
                )


def _beside(folder: Folder, records: Sequence[Record]) -> Iterator[Image.Image]:
    for record in records:
        yield folder.image(record, "img_filename", *PLACES)
