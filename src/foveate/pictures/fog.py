"""An image in fog where its tokens are forgotten, hatched where the model never saw it."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from foveate.models.token_grids import Box, Grid, Number
from foveate.pictures.views import part_of

_FOG, _HATCH = (120, 128, 148), (236, 236, 232)
_LEAST = 0.3  # of an image shows through where no head holds its token: it can still be read
_CURVE = 0.5  # below 1, so that a tenth of the heads makes a difference that can be seen


def canvas(image: Image.Image, grid: Grid | None) -> Box:
    """The image and all that its grid sees, in the image's pixels."""
    if grid is None:
        return 0, 0, *image.size
    left, top, right, bottom = grid.on(image.size)
    return min(left, 0), min(top, 0), max(right, image.width), max(bottom, image.height)


def lit(
    image: Image.Image,
    grid: Grid,
    share: Float[Tensor, "t"],
    size: tuple[int, int],
    whole: Bool[Tensor, "t"] | None = None,
) -> Image.Image:
    """The image, at a size in pixels, and what a processor puts around it: cell by cell as clear as
    the share of heads that hold the cell's token, crossed where that is none of ``whole``, and
    hatched where it is under no cell.
    """
    box = canvas(image, grid)
    pixels = np.asarray(part_of(image, box, size)).astype(np.float64)
    left, top, right, bottom = grid.on(image.size)
    rows = _cells(size[1], box[1], box[3], top, bottom, grid.rows)
    columns = _cells(size[0], box[0], box[2], left, right, grid.columns)
    held = share[list(grid.places)].view(grid.rows, grid.columns).clamp(0, 1).cpu().numpy()
    clear = _LEAST + (1 - _LEAST) * held[rows.clip(0)[:, None], columns.clip(0)] ** _CURVE
    foggy = _FOG + (pixels - _FOG) * clear[..., None]
    if whole is not None:
        computed = whole[list(grid.places)].view(grid.rows, grid.columns).cpu().numpy()
        foggy = _crossed(foggy, ~computed[rows.clip(0)[:, None], columns.clip(0)])
    unseen = (rows < 0)[:, None] | (columns < 0)
    return Image.fromarray(np.where(unseen[..., None], _hatched(pixels), foggy).astype(np.uint8))


def _cells(
    length: int, start: Number, end: Number, first: Number, last: Number, cells: int
) -> NDArray[np.intp]:
    """For each of so many pixels from start to end, in which cell its middle lies; -1 in none."""
    middles = start + (np.arange(length) + 0.5) * (end - start) / length
    cells_of = np.floor((middles - first) / (last - first) * cells).astype(np.intp)
    return np.where((cells_of < 0) | (cells_of >= cells), -1, cells_of)


def _crossed(pixels: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Darker along two sets of lines."""
    down, across = (np.arange(length) for length in pixels.shape[:2])
    lines = ((down[:, None] + across) % 11 < 2) | ((down[:, None] - across) % 11 < 2)
    return np.asarray(np.where((where & lines)[..., None], 0.45 * pixels, pixels))


def _hatched(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Grey, pale, and crossed by thin lines."""
    pale = np.asarray(_HATCH) + 0.25 * (pixels.mean(-1, keepdims=True) - np.asarray(_HATCH))
    down, across = (np.arange(length) for length in pixels.shape[:2])
    lines = (down[:, None] + across) % 9 < 2
    return np.asarray(np.where(lines[..., None], 0.72 * pale, pale), dtype=np.float64)
