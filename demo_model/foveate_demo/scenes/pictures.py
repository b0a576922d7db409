"""Small pictures: icons and stamps, each with a name from a closed list.

The drawings are Bootstrap's and Tabler's icons (MIT) and Noto Color Emoji (OFL); the notices are
files beside the sheet.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from random import Random

from PIL import Image

from foveate.errors import MissingPackage
from foveate_demo.scenes.documents import Facts, Fonts, Scene, scene
from foveate_demo.scenes.drawing import CELL, WIDTH, Page, any_style
from foveate_demo.scenes.words import PICTURES

SIDE = 48
SHEET = Path(__file__).parents[1] / "sheet" / "pictures.png"
_COLOURED = 4  # row of the sheet with coloured drawings; the others are masks


@lru_cache(maxsize=1)
def _sheet() -> dict[str, list[Image.Image]]:
    """Return the drawings by name; those in one colour are masks.

    Raises:
        MissingPackage: the sheet ships with the demo's weights, which are not installed.
    """
    if not SHEET.is_file():
        raise MissingPackage("a small picture", "foveate-demo", "demo")
    sheet = Image.open(SHEET)
    drawn: dict[str, list[Image.Image]] = {name: [] for name in PICTURES}
    for column, name in enumerate(PICTURES):
        for row in range(sheet.height // SIDE):
            x, y = column * SIDE, row * SIDE
            cut = sheet.crop((x, y, x + SIDE, y + SIDE))
            if cut.getbbox():
                drawn[name].append(cut if row == _COLOURED else cut.getchannel("A"))
    return drawn


def picture(r: Random, fonts: Fonts, name: str, facts: Facts = (), rows: int = 0) -> Scene:
    """Draw a small picture, about three rows high, above, between or below the lines of a form.

    The row of the picture's middle gets the text "Picture: cat", as if it were written there.

    Raises:
        KeyError: no picture has this name.
    """
    page = Page(max(rows, len(facts) + r.randint(3, 5)), any_style(r, fonts), r)
    total = len(page.texts)
    above = r.randint(0, len(facts))  # number of lines above the picture
    middle = r.randint(above + 1, total - (len(facts) - above) - 2)
    fact_rows = sorted(r.sample(range(middle - 1), above))
    fact_rows += sorted(r.sample(range(middle + 2, total), len(facts) - above))
    left = r.randint(4, 60)
    for row, (field, value) in zip(fact_rows, facts, strict=True):
        page.line(row, f"{field}: {value}", left)
    x, side = _stamp(r, page, name, middle)
    label = page.texts[middle] = f"Picture: {name}"
    page.where[middle] = {i: x + side * (i + 0.5) / len(label) for i in range(len(label))}
    located = [(field, value, row) for row, (field, value) in zip(fact_rows, facts, strict=True)]
    return scene(page, [*located, ("Picture", name, middle)])


def _stamp(r: Random, page: Page, name: str, row: int) -> tuple[int, int]:
    """Draw one of the picture's drawings in a row, slightly rotated. Return its left edge and its
    width.
    """
    drawn = r.choice(_sheet()[name])
    side = r.randint(40, 66)
    turned = drawn.resize((side, side), Image.Resampling.BILINEAR)
    if r.random() < 0.5:
        turned = turned.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    turned = turned.rotate(r.uniform(-8, 8), Image.Resampling.BILINEAR)
    x = r.randint(2, WIDTH - side - 2)
    y = row * CELL + (CELL - side) // 2 + r.randint(-4, 4)
    if turned.mode == "L":
        page.image.paste(page.style.ink, (x, y), turned)
    else:
        page.image.paste(turned, (x, y), turned)
    return x, side
