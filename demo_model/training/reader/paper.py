"""Paper: pages on which documents are drawn, and what scanners and cameras do to them."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from foveate_demo.scenes.drawing import font

Fonts = tuple[Path, ...]


class Item(NamedTuple):
    """Text that was drawn, and its box on the page: left, top, right, bottom."""

    text: str
    box: tuple[float, float, float, float]


class Style(NamedTuple):
    """Fonts and habits of a document."""

    body: Path
    head: Path
    size: int
    gap: float  # between lines, as a share of the size
    capitals: bool
    ink: int


class Paper:
    """A page that grows downwards: a cursor, and what was drawn so far."""

    def __init__(self, r: Random, style: Style, width: int):
        self.r, self.style, self.width = r, style, width
        self.margin = r.randint(8, max(9, width // 12))
        self.y = float(r.randint(6, 60))
        self.calls: list[tuple[float, float, str, Path, int]] = []
        self.items: list[Item] = []
        self.rules: list[float] = []

    def put(self, x: float, text: str, size: int = 0, head: bool = False) -> None:
        """Write a text at x, on the line of the cursor; nothing if it is empty."""
        if not text:
            return
        face, size = self.style.head if head else self.style.body, size or self.style.size
        box = font(face, size).getbbox(text)
        self.calls.append((x, self.y, text, face, size))
        self.items.append(Item(text, (x + box[0], self.y + box[1], x + box[2], self.y + box[3])))

    def wide(self, text: str, size: int = 0, head: bool = False) -> float:
        """Return the width of a text."""
        face = self.style.head if head else self.style.body
        return float(font(face, size or self.style.size).getlength(text))

    def down(self, lines: float = 1.0, size: int = 0) -> None:
        """Move the cursor down."""
        self.y += lines * (size or self.style.size) * (1 + self.style.gap)

    def line(self, text: str, align: str = "left", size: int = 0, head: bool = False) -> None:
        """Write a line, smaller if it does not fit."""
        size = size or self.style.size
        while self.wide(text, size, head) > self.width - 2 * self.margin and size > 9:
            size -= 1
        free = self.width - self.wide(text, size, head)
        x = {"left": self.margin, "centre": free / 2, "right": free - self.margin}[align]
        self.put(max(2.0, x), text, size, head)
        self.down(1, size)

    def row(self, cells: list[tuple[float, str, str]]) -> None:
        """Write cells of (position as a share of the width, text, alignment) on one line.

        A cell that would touch the one before is moved to the right, or to the next line.
        """
        inner, end, gap = self.width - 2 * self.margin, 0.0, 0.6 * self.style.size
        for at, text, align in cells:
            wide = self.wide(text)
            x = self.margin + at * inner - {"left": 0.0, "right": 1.0, "centre": 0.5}[align] * wide
            if x < end + gap and end:
                x = end + gap
            if x + wide > self.width - 2 and end:
                self.down()
                x = max(self.margin, self.width - self.margin - wide)
            size = self.style.size
            while x + self.wide(text, size) > self.width - 2 and size > 8:
                size -= 1
            self.put(x, text, size)
            end = x + self.wide(text, size)
        self.down()

    def rule(self) -> None:
        """Draw a line across, of ink or of characters."""
        kind = self.r.random()
        if kind < 0.4:
            self.rules.append(self.y + self.style.size * 0.5)
            self.down(0.8)
        elif kind < 0.8:
            mark = self.r.choice("-=_*.")
            count = int((self.width - 2 * self.margin) / max(1.0, self.wide(mark)))
            self.calls.append((self.margin, self.y, mark * count, self.style.body, self.style.size))
            self.down()
        else:
            self.down(0.6)

    def scanned(self) -> tuple[Image.Image, list[Item]]:
        """Return the page as a scanner or camera sees it, and its items on it."""
        r = self.r
        size = (self.width, int(self.y + r.randint(10, 60)))
        image = Image.new("L", size, r.randint(225, 255))
        draw = ImageDraw.Draw(image)
        for x, y, text, face, points in self.calls:
            draw.text((x, y), text, fill=self.style.ink, font=font(face, points))
        for y in self.rules:
            draw.line((self.margin, y, self.width - self.margin, y), fill=self.style.ink, width=1)
        squeeze = r.choice((1.0, 1.0, r.uniform(0.62, 1.0)))  # condensed type
        squeeze = max(squeeze, min(1.0, 300 / self.width))
        image, items = _resized(image, self.items, squeeze, 1.0)
        return worn(r, image), items


def _resized(
    image: Image.Image, items: list[Item], across: float, down: float
) -> tuple[Image.Image, list[Item]]:
    size = max(1, round(image.width * across)), max(1, round(image.height * down))
    scale = (across, down, across, down)
    moved = [
        Item(item.text, tuple(a * b for a, b in zip(item.box, scale, strict=True)))  # type: ignore[arg-type]
        for item in items
    ]
    return image.resize(size, Image.Resampling.BICUBIC), moved


def worn(r: Random, image: Image.Image) -> Image.Image:
    """Return a grey image with the faults of thermal printers, scanners, cameras and files."""
    g = np.random.default_rng(r.getrandbits(32))
    pixels = np.asarray(image, dtype=np.float32)
    ink = 255 - pixels
    high, wide = pixels.shape
    if r.random() < 0.3:  # weak print, in bands
        bands = np.interp(np.arange(high), np.linspace(0, high, 8), g.uniform(0.45, 1, 8))
        ink = ink * bands[:, None].astype(np.float32)
    if r.random() < 0.3:  # missing dots
        ink = ink * (g.random(pixels.shape) > r.uniform(0, 0.12))
    pixels = 255 - ink
    if r.random() < 0.6:
        shade = np.interp(np.arange(wide), np.linspace(0, wide, 4), g.uniform(-30, 0, 4))
        pixels = pixels + shade.astype(np.float32)
    pixels = pixels + g.standard_normal(pixels.shape, dtype=np.float32) * r.choice((0, 4, 9, 16))
    if r.random() < 0.1:  # dust
        pixels[g.random(pixels.shape) < 0.002] = r.choice((0, 255))
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    if r.random() < 0.4:
        image = image.filter(ImageFilter.GaussianBlur(r.uniform(0.3, 0.9)))
    if r.random() < 0.15:
        image = image.filter(r.choice((ImageFilter.MinFilter(3), ImageFilter.SHARPEN)))
    if r.random() < 0.12:
        _scribble(r, image)
    if r.random() < 0.5:
        stored = io.BytesIO()
        image.save(stored, "JPEG", quality=r.randint(25, 85))
        image = Image.open(stored)
    return image.convert("RGB")


def _scribble(r: Random, image: Image.Image) -> None:
    """Draw strokes of a pen somewhere."""
    x, y = r.uniform(0, image.width), r.uniform(0, image.height)
    points = [(x, y)]
    for _ in range(r.randint(3, 12)):
        x, y = x + r.uniform(-40, 50), y + r.uniform(-25, 25)
        points.append((x, y))
    ImageDraw.Draw(image).line(points, fill=r.randint(30, 120), width=r.randint(1, 3))
