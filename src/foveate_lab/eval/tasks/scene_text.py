"""Words on signs in photographs: text that fills a small part of the image.

The photographs are files of the package scikit-image (public domain or CC0, see its
``skimage/data/README.txt``); it is not imported. The signs are drawn on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from random import Random

from PIL import Image, ImageDraw

from foveate.errors import InvalidInput, MissingPackage
from foveate.prompts.sample import Sample, Span
from foveate_demo.scenes import BUILT_IN, CELL, WIDTH
from foveate_demo.scenes.drawing import any_style, font
from foveate_demo.scenes.words import FIELDS
from foveate_lab.eval.metrics import has_words
from foveate_lab.eval.task_registry import task

PHOTOGRAPHS = (
    "astronaut.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "motorcycle_left.png",
    "rocket.jpg",
)
FIELDS_ON_SIGNS = ("City", "Street", "Room", "Gate", "Time", "Price", "Month", "Department")
ROWS = 10


@task("scene_text", metric=has_words)
def scene_text(count: int, seed: int) -> Iterator[Sample]:
    """Read a word, time or number on a sign in a photograph (needs scikit-image)."""
    for number in range(count):
        r = Random(f"scene_text/{seed}/{number}")
        image = photograph(r.choice(PHOTOGRAPHS)).copy()
        field = r.choice(FIELDS_ON_SIGNS)
        text = f"{field}: {FIELDS[field](r)}"
        yield Sample(
            name=str(number),
            question=f"What is the {field.lower()} on the sign?",
            answers=(text, text.removeprefix(f"{field}: ")),
            images=(image,),
            evidence=(Span(text, 0, _sign(r, image, text)),),
        )


def _sign(r: Random, image: Image.Image, text: str) -> tuple[int, int, int, int]:
    """Draw a sign with a text at a random position, and return its box."""
    style = any_style(r, (BUILT_IN,))
    face = font(style.font, r.randint(14, 18))
    wide = int(face.getlength(text)) + 16
    left, top = r.randint(2, WIDTH - wide - 2), r.randrange(1, ROWS - 1) * CELL
    box = (left, top, left + wide, top + CELL)
    draw = ImageDraw.Draw(image)
    draw.rectangle(box, fill=style.paper, outline=style.ink)
    draw.text((left + 8, top + CELL // 2), text, fill=style.ink, font=face, anchor="lm")
    return box


@cache
def photograph(name: str) -> Image.Image:
    """Load a photograph, cropped to a common shape.

    Raises:
        MissingPackage: scikit-image is not installed.
        InvalidInput: scikit-image has no such file.
    """
    spec = find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackage("scene_text", "scikit-image", "photos")
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    try:
        with Image.open(path) as image:
            photo = image.convert("RGB")
    except OSError as error:
        raise InvalidInput(f"this scikit-image has no photograph {name!r}: {error}.") from error
    scale = max(WIDTH / photo.width, ROWS * CELL / photo.height)
    photo = photo.resize((round(photo.width * scale), round(photo.height * scale)))
    left, top = (photo.width - WIDTH) // 2, (photo.height - ROWS * CELL) // 2
    return photo.crop((left, top, left + WIDTH, top + ROWS * CELL))
