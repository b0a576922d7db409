"""Pages on which scenes are drawn: paper, ink and fonts.

A page is a grid of cells, ``CELL`` pixels square and ``SLOTS`` to a row. A line of text has its
middle inside one row of cells. A page records the text of each row, and the characters' positions.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from foveate.errors import InvalidInput

CELL = 24
SLOTS = 16
WIDTH = CELL * SLOTS

Colour = tuple[int, int, int]


class Style(NamedTuple):
    """Style of all lines of a page."""

    font: Path
    size: int
    ink: Colour
    paper: Colour
    jitter: int  # largest vertical offset of a line from the middle of its row, in pixels


def any_style(r: Random, fonts: tuple[Path, ...]) -> Style:
    """Draw a font, a size, and colours with contrast; about one page in eight is light on dark."""
    light: Colour = tuple(r.randint(215, 255) for _ in range(3))  # type: ignore[assignment]
    dark: Colour = tuple(r.randint(0, 90) for _ in range(3))  # type: ignore[assignment]
    ink, paper = (light, dark) if r.random() < 0.12 else (dark, light)
    return Style(r.choice(fonts), r.randint(12, 18), ink, paper, r.randint(0, 3))


BUILT_IN = Path("Aileron")  # the font inside Pillow


@lru_cache(maxsize=4096)
def font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    """Load a font at a size in pixels."""
    if path != BUILT_IN:
        return ImageFont.truetype(str(path), size)
    built_in = ImageFont.load_default(size)
    if not isinstance(built_in, ImageFont.FreeTypeFont):
        raise InvalidInput("this Pillow was built without FreeType and draws no text.")
    return built_in


@lru_cache(maxsize=65536)
def advance(path: Path, size: int, character: str) -> float:
    """Return the advance width of a character in pixels."""
    return font(path, size).getlength(character)


class Page:
    """An image under construction, with the texts of its rows."""

    def __init__(self, rows: int, style: Style, r: Random):
        self.r, self.style = r, style
        self.image = Image.new("RGB", (WIDTH, rows * CELL), style.paper)
        self.draw = ImageDraw.Draw(self.image)
        self.texts = [""] * rows
        self.where: list[dict[int, int | float]] = [{} for _ in range(rows)]

    def middle(self, row: int) -> int:
        """Draw the vertical middle of a line in this row, in pixels from the top."""
        return row * CELL + CELL // 2 + self.r.randint(-self.style.jitter, self.style.jitter)

    def width(self, text: str, size: int = 0) -> int:
        """Return the width of a text in pixels."""
        return int(font(self.style.font, size or self.style.size).getlength(text)) + 1

    def text(self, x: int | float, y: int | float, text: str, size: int = 0) -> None:
        """Draw a text with its left end at x and its vertical middle at y."""
        face = font(self.style.font, size or self.style.size)
        self.draw.text((x, y), text, fill=self.style.ink, font=face, anchor="lm")

    def write(
        self, row: int, content: str, *pieces: tuple[str, int | float], size: int = 0
    ) -> None:
        """Set a row's text to ``content``, and draw the given pieces of it: (text, left end)."""
        y, at = self.middle(row), 0
        self.texts[row] = content
        for text, x in pieces:
            self.text(x, y, text, size)
            at = content.index(text, at)
            for i, character in enumerate(text, at):
                wide = advance(self.style.font, size or self.style.size, character)
                self.where[row][i] = x + wide / 2
                x += wide
            at += len(text)

    def line(self, row: int, text: str, x: int | float | None = None) -> None:
        """Draw a line of text in a row, at x or at random, in a smaller size if it does not fit."""
        size = self.style.size
        while self.width(text, size) > WIDTH - 8 and size > 8:
            size -= 1
        if x is None:
            x = self.r.randint(3, max(3, min(90, WIDTH - 4 - self.width(text, size))))
        self.write(row, text, (text, max(2, min(x, WIDTH - 3 - self.width(text, size)))), size=size)

    def rule(self, y: int | float, x0: int | float = 0, x1: int | float = WIDTH) -> None:
        """Draw a horizontal line."""
        self.draw.line((x0, y, x1, y), fill=blend(self.style.ink, self.style.paper, 0.5))

    def finished(self) -> Image.Image:
        """Return the page with light noise, a gradient of brightness, and sometimes some blur."""
        image, r = self.image, self.r
        if r.random() < 0.25:
            image = image.filter(ImageFilter.GaussianBlur(r.uniform(0.2, 0.6)))
        noise, slope = r.uniform(0, 7), r.uniform(-14, 14)
        if r.random() < 0.3:
            return image
        pixels = np.asarray(image, dtype=np.float32)
        g = np.random.default_rng(r.getrandbits(32))
        grey = g.standard_normal(pixels.shape[:2], dtype=np.float32) * noise
        grey += np.linspace(-slope, slope, pixels.shape[1], dtype=np.float32)
        return Image.fromarray((pixels + grey[..., None]).clip(0, 255).astype(np.uint8))


def blend(a: Colour, b: Colour, share: float) -> Colour:
    """Mix two colours, with this ``share`` of the first."""
    return tuple(int(x * share + y * (1 - share)) for x, y in zip(a, b, strict=True))  # type: ignore[return-value]
