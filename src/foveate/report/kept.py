"""A picture of what was kept: the images, dark where no head holds their tokens any more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from foveate.backends.hf.places import Grid

_NIGHT = (14, 17, 27)
_INK, _FAINT = (236, 238, 244), (150, 156, 172)
_WIDE, _GAP, _MARGIN = 300, 14, 22  # pixels: an image, between images, around all
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
            0 (dark) to 1 (as in the image).
    """
    size = [(_WIDE, round(image.height * _WIDE / image.width)) for image in images]
    high = max(height for _, height in size) + 46
    width = 2 * _MARGIN + len(images) * (_WIDE + _GAP) - _GAP
    page = Image.new("RGB", (width, _MARGIN + len(rows) * (high + _GAP) + 30), _NIGHT)
    draw = ImageDraw.Draw(page)
    y = _MARGIN
    for title, words, share in rows:
        draw.text((_MARGIN, y), title, fill=_INK, font=ImageFont.load_default(17))
        draw.text((_MARGIN, y + 21), words, fill=_FAINT, font=ImageFont.load_default(14))
        for i, (image, grid, fit) in enumerate(zip(images, grids, size, strict=True)):
            page.paste(lit(image.resize(fit), grid, share), (_MARGIN + i * (_WIDE + _GAP), y + 44))
        y += high + _GAP
    legend = "Brightness: the share of KV heads, over all layers, that still hold a token."
    draw.text((_MARGIN, y), legend, fill=_FAINT, font=ImageFont.load_default(13))
    return page


def lit(image: Image.Image, grid: Grid, share: Float[Tensor, "t"]) -> Image.Image:
    """The image as dark as its tokens are forgotten, cell by cell."""
    held = share[list(grid.places)].view(grid.rows, grid.columns).clamp(0, 1).cpu().numpy()
    light = Image.fromarray((255 * (_FLOOR + (1 - _FLOOR) * held)).astype(np.uint8))
    mask = light.resize(image.size, Image.Resampling.NEAREST)
    return Image.composite(image.convert("RGB"), Image.new("RGB", image.size, _NIGHT), mask)
