"""ScreenSpot-v2 in all its forms, with boxes as left, top, width and height in pixels.

The authors' repository has three JSON files and an archive of images; lmms-lab's has the same boxes
in parquet, without the screen, which the image's name says; HongxinLi's has shares of width and
height, from corner to corner; VLMEvalKit's three tables have the boxes as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foveate.data import Record, listed
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.source import KIT, Images, Source, on_hub
from foveate_lab.eval.benchmarks.sources import Sources

SCREENS = ("mobile", "desktop", "web")
BEGINNINGS = {"mobile": "mobile", "pc": "desktop", "desktop": "desktop", "web": "web"}
PLACES = ("screenspotv2_image/{}", "{}", "ScreenSpot_v2/screenspotv2_image/{}")


def sources_of(screen: str | None = None) -> Sources:
    """All forms, of one screen or of the three."""
    screens = (screen,) if screen else SCREENS
    beside: dict[str, Any] = {"image_fields": ("img_filename",), "image_places": PLACES}
    columns = ("instruction", "bbox", "data_type")
    return Sources(
        "ScreenSpot-v2",
        Source(
            contents="screenspot_*_v2.json and screenspotv2_image/",
            address="https://huggingface.co/datasets/OS-Copilot/ScreenSpot-v2",
            splits={"test": tuple(f"screenspot_{name}_v2.json" for name in screens)},
            path_fields=lambda path: {"screen": path.stem.split("_")[1]},
            **beside,
        ),
        on_hub(
            "lmms-lab/ScreenSpot-v2",
            "train",
            *columns,
            optional=("img_filename", "file_name", "data_source"),
            prepare=_with_screen,
        ),
        on_hub(
            "HongxinLi/ScreenSpot_v2",
            "test",
            *(*columns, "file_name"),
            optional=("data_source",),
            prepare=_in_pixels,
        ),
        Source(
            publisher="VLMEvalKit",
            contents="VLMEvalKit's ScreenSpot_v2_Mobile.tsv, ScreenSpot_v2_Desktop.tsv and "
            "ScreenSpot_v2_Web.tsv, beside screenspotv2_image/ where the images are not in them",
            address=KIT,
            splits={"test": tuple(f"ScreenSpot_v2_{name.capitalize()}.tsv" for name in screens)},
            columns=("index", "bbox", "data_type"),
            path_fields=lambda path: {"screen": path.stem.rpartition("_")[2].lower()},
            image_column="image",
            prepare=_of_table,
            **beside,
        ),
    )


def _with_screen(record: Record, images: Images) -> Record:
    """Add the kind of screen, which the beginning of its image's name tells."""
    cell = record.fields.get("image")
    path = cell.get("path") if isinstance(cell, Mapping) else None
    named = record if "file_name" in record.fields else record.also(file_name=path)
    name = named.text("img_filename", "file_name")
    beginning = name.rpartition("/")[2].partition("_")[0].lower()
    if beginning not in BEGINNINGS:
        raise InvalidInput(
            f"{record.where}: the image is called {name!r}; its name has to begin with "
            f"{', '.join(f'{kind}_' for kind in BEGINNINGS)}, which says what screen it is of."
        )
    return record.also(screen=BEGINNINGS[beginning])


def _in_pixels(record: Record, images: Images) -> Record:
    left, top, right, bottom = shares = record.numbers("bbox", 4)
    if not all(0 <= share <= 1 for share in shares):
        raise InvalidInput(
            f"{record.where}: the field 'bbox' is {list(shares)}; it has to be shares of 0 to 1."
        )
    wide, high = images[0].size
    box = [left * wide, top * high, (right - left) * wide, (bottom - top) * high]
    return _with_screen(record, images).also(bbox=box)


def _of_table(record: Record, images: Images) -> Record:
    instruction = record.text("instruction", "question")
    return listed(record, "bbox").also(instruction=instruction)
