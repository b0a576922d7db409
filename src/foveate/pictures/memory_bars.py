"""A picture of what fills a memory: a bar for each peak, and a line where the memory ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from foveate.pictures.strips import FAINT, INK, PALETTE, PAPER, stacked, text_strip

Row = tuple[str, Sequence[tuple[str, int]]]
"""A bar: its name, and its pieces with their bytes."""

_WIDE, _HIGH = 876, 26  # pixels of the longest bar's strip, and of each bar
_SIDE = 12  # pixels of a colour in the legend
_END = (220, 40, 40)


def memory_picture(title: str, rows: Sequence[Row], memory: int) -> Image.Image:
    """Draws one bar for each row, all to one scale, and a legend.

    Args:
        title: stands above.
        rows: of each peak the pieces that are held, in bytes, from the left.
        memory: bytes that are there: a red line. What reaches beyond it does not fit.
    """
    names = list(dict.fromkeys(name for _, pieces in rows for name, _ in pieces))
    colors = dict(zip(names, PALETTE, strict=False))
    most = max([memory, *(sum(size for _, size in pieces) for _, pieces in rows)])
    strips = [(0, text_strip(title, 18, _WIDE))]
    for name, pieces in rows:
        total = sum(size for _, size in pieces)
        said = f"{name}: {total / 1e9:,.1f} GB"
        strips.append((14, text_strip(said, 14, _WIDE, FAINT)))
        strips.append((2, _bar(pieces, colors, memory, most)))
    end = f"The red line: the memory, {memory / 1e9:,.1f} GB."
    strips += [(16, _legend(colors)), (4, text_strip(end, 13, _WIDE, FAINT))]
    return stacked(strips, _WIDE, margin=22)


def _bar(
    pieces: Sequence[tuple[str, int]], colors: dict[str, str], memory: int, most: int
) -> Image.Image:
    strip = Image.new("RGB", (_WIDE, _HIGH), PAPER)
    draw, scale, left = ImageDraw.Draw(strip), (_WIDE - 3) / most, 0.0
    for name, size in pieces:
        right = left + size * scale
        if round(right) > round(left):
            draw.rectangle((round(left), 3, round(right) - 1, _HIGH - 4), fill=colors[name])
        left = right
    draw.line((round(memory * scale), 0, round(memory * scale), _HIGH), fill=_END, width=2)
    return strip


def _legend(colors: dict[str, str]) -> Image.Image:
    strip = Image.new("RGB", (_WIDE, 20), PAPER)
    draw, x = ImageDraw.Draw(strip), 0
    font: Any = ImageFont.load_default(13)
    for name, color in colors.items():
        draw.rectangle((x, 4, x + _SIDE, 4 + _SIDE), fill=color)
        draw.text((x + _SIDE + 6, 1), name, fill=INK, font=font)
        x += _SIDE + 24 + round(font.getlength(name))
    return strip
