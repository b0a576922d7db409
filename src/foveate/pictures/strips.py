"""Full-width strips of a picture: lines of text, and rows of images."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from foveate.pictures.escaping import escape_hidden, short, width

PAPER, INK, FAINT = (250, 250, 248), (24, 28, 38), (98, 104, 118)
PALETTE = (
    "#2f7ed8",
    "#d9650b",
    "#2e9a4b",
    "#dc4340",
    "#9a63d8",
    "#a8714a",
    "#d1549f",
    "#808080",
    "#8c8a1c",
    "#1795a8",
)  # on black and white
GAP = 14  # pixels between images in a row
_BREAKS = " ,(:=+/"


def text_strip(
    text: str, size: int, wide: int, ink: tuple[int, int, int] = INK, max_lines: int = 3
) -> Image.Image:
    """Draw a text in lines of at most ``wide`` pixels.

    Args:
        text: the text; if it needs more than ``max_lines``, the last line loses its middle.
        size: font size in pixels.
        wide: width of the strip in pixels.
        ink: colour of the text.
        max_lines: maximum number of lines.
    """
    font: Any = ImageFont.load_default(size)
    lines = _wrap(escape_hidden(text), font, wide, max_lines)
    high = round(size * 1.35)
    strip = Image.new("RGB", (wide, high * len(lines)), PAPER)
    draw = ImageDraw.Draw(strip)
    for number, line in enumerate(lines):
        draw.text((0, number * high), line, fill=ink, font=font)
    return strip


def _wrap(text: str, font: Any, wide: int, max_lines: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < max_lines - 1 and font.getlength(text) > wide:
        fits = bisect_right(range(1, len(text) + 1), wide, key=lambda n: font.getlength(text[:n]))
        end = max(text.rfind(sign, 0, fits) for sign in _BREAKS) + 1 or fits
        lines.append(text[:end].rstrip())
        text = text[end:].lstrip()
    if font.getlength(text) > wide:
        letters = range(1, width(text) + 1)
        fits = bisect_right(letters, wide, key=lambda n: font.getlength(short(text, n)))
        text = short(text, fits)
    return [*lines, text]


def beside(pictures: Sequence[Image.Image], wide: int) -> Image.Image:
    """Draw images in a row, from the left."""
    strip = Image.new(
        "RGB", (wide, max((picture.height for picture in pictures), default=0)), PAPER
    )
    x = 0
    for picture in pictures:
        strip.paste(picture, (x, 0))
        x += picture.width + GAP
    return strip


def stacked(strips: Sequence[tuple[int, Image.Image]], wide: int, margin: int) -> Image.Image:
    """Draw strips below each other; each number is the space in pixels above a strip."""
    high = sum(space + strip.height for space, strip in strips)
    page = Image.new("RGB", (wide + 2 * margin, high + 2 * margin), PAPER)
    y = margin
    for space, strip in strips:
        page.paste(strip, (margin, y + space))
        y += space + strip.height
    return page
