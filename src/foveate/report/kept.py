"""A picture of what was kept: the images, dark where no head holds their tokens any more."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveate.backends.hf.modality import Grid
from foveate.report.shown import short, shown, width

_NIGHT = (14, 17, 27)
_INK, _FAINT = (236, 238, 244), (150, 156, 172)
_WIDE, _GAP, _MARGIN = 300, 14, 22  # pixels: an image, between images, around all
LEGEND = "Brightness: the share of KV heads, over all layers, that still hold a token."
_FLOOR = 0.10  # what is held by no head can still be made out


def kept_picture(
    images: Sequence[Image.Image],
    grids: Sequence[Grid],
    rows: Sequence[tuple[str, str, Float[Tensor, "t"]]],
) -> Image.Image:
    """Draws one row of images for every method.

    Args:
        images: of the prompt.
        grids: where their tokens stand, one for each image.
        rows: title, second line, and the share of heads that hold each token of the prompt, from
            0 (dark) to 1 (as in the image). Lines that are wider than the images lose their middle.
    """
    size = [(_WIDE, round(image.height * _WIDE / image.width)) for image in images]
    high = max(height for _, height in size) + 46
    wide = len(images) * (_WIDE + _GAP) - _GAP
    page = Image.new("RGB", (wide + 2 * _MARGIN, _MARGIN + len(rows) * (high + _GAP) + 44), _NIGHT)
    draw = ImageDraw.Draw(page)
    y = _MARGIN
    for title, words, share in rows:
        for down, text, ink, size_of in ((0, title, _INK, 17), (21, words, _FAINT, 14)):
            font = ImageFont.load_default(size_of)
            draw.text((_MARGIN, y + down), _fitted(text, font, wide), fill=ink, font=font)
        for i, (image, grid, fit) in enumerate(zip(images, grids, size, strict=True)):
            page.paste(lit(image.resize(fit), grid, share), (_MARGIN + i * (_WIDE + _GAP), y + 44))
        y += high + _GAP
    font = ImageFont.load_default(13)
    lines = LEGEND if font.getlength(LEGEND) <= wide else LEGEND.replace("layers, ", "layers,\n")
    draw.text((_MARGIN, y), lines, fill=_FAINT, font=font)
    return page


def _fitted(text: str, font: Any, wide: int) -> str:
    """As much of the text as is no wider than so many pixels."""
    letters = range(1, width(shown(text)) + 1)
    most = bisect_right(letters, wide, key=lambda n: font.getlength(short(text, n)))
    return short(text, most)


def lit(image: Image.Image, grid: Grid, share: Float[Tensor, "t"]) -> Image.Image:
    """The image as dark as its tokens are forgotten, cell by cell."""
    held = share[list(grid.places)].view(grid.rows, grid.columns).clamp(0, 1).cpu().numpy()
    light = Image.fromarray((255 * (_FLOOR + (1 - _FLOOR) * held)).astype(np.uint8))
    mask = light.resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(image.convert("RGB"), Image.new("RGB", image.size, _NIGHT), mask)
