"""Many images as one: MileBench's way for models that take a single one.

Song et al., arXiv:2404.18532, data/combine_images.py. Each image is brought to 800 x 800 pixels,
whatever its shape, and gets its number, "Image 1" and so on, in white on black at its lower edge;
they stand in a square grid, row by row. The authors write with Arial, here it is Pillow's font.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

SIDE = 800
LETTERS = 32  # pixels: four times the font size of the authors' script
PADDING = 12


def joined(images: Sequence[Image.Image]) -> Image.Image:
    """Return a page with the images in a grid, as wide as the root of their number, rounded up."""
    across = math.ceil(math.sqrt(len(images)))
    down = math.ceil(len(images) / across)
    page = Image.new("RGB", (across * SIDE, down * SIDE))
    for index, image in enumerate(images):
        cell = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        _write(cell, f"Image {index + 1}")
        page.paste(cell, (index % across * SIDE, index // across * SIDE))
    return page


def _write(cell: Image.Image, text: str) -> None:
    draw, font = ImageDraw.Draw(cell), ImageFont.load_default(LETTERS)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    wide, high = right - left, bottom - top
    x, y = (SIDE - wide) // 2, SIDE - high
    ground = (x - PADDING, y - PADDING - 10, x + wide + PADDING, SIDE)
    draw.rectangle(ground, fill="black")
    draw.text((x, y - PADDING), text, fill="white", font=font)
