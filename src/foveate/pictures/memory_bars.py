"""Picture of memory use: a bar for each peak, and a line at the available memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from foveate.pictures.strips import FAINT, INK, PALETTE, PAPER, stacked, text_strip

Row = tuple[str, Sequence[tuple[str, int]]]
"""Bar: its name, and its pieces with their bytes."""

_WIDE, _HIGH = 876, 26  # pixels of the longest bar's strip, and of each bar
_SIDE = 12  # pixels of a colour in the legend
_END = (220, 40, 40)


def memory_picture(title: str, rows: Sequence[Row], memory: int) -> Image.Image:
    """Draw a bar for each row, all to one scale, and a legend.

    Args:
        title: the title above the bars.
        rows: for each peak its pieces in bytes, from the left.
        memory: available bytes, as a red line; bars beyond it do not fit.
    """
    names = list(dict.fromkeys(name for _, pieces in rows for name, _ in pieces))
    colors = dict(zip(names, PALETTE, strict=False))
    longest = max([memory, *(sum(size for _, size in pieces) for _, pieces in rows)])
    strips = [(0, text_strip(title, 18, _WIDE))]
    for name, pieces in rows:
        total = sum(size for _, size in pieces)
        label = f"{name}: {total / 1e9:,.1f} GB"
        strips.append((14, text_strip(label, 14, _WIDE, FAINT)))
        strips.append((2, _bar(pieces, colors, memory, longest)))
    end = f"Red line: the memory, {memory / 1e9:,.1f} GB."
    strips += [(16, _legend(colors)), (4, text_strip(end, 13, _WIDE, FAINT))]
    return stacked(strips, _WIDE, margin=22)


def _bar(
    pieces: Sequence[tuple[str, int]], colors: dict[str, str], memory: int, longest: int
) -> Image.Image:
    strip = Image.new("RGB", (_WIDE, _HIGH), PAPER)
    draw, scale, left = ImageDraw.Draw(strip), (_WIDE - 3) / longest, 0.0
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
