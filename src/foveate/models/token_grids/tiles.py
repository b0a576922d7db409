"""Models that see an image whole and in tiles: where each token of the tiles is on the image.

Grids here count an image's own tokens from 0.
"""

from __future__ import annotations

import math
import re
from typing import Any

from PIL import Image
from transformers.image_processing_utils import select_best_resolution
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from foveate.models.token_grids.grid import Box, Grid, ImageTokens, Size

_MUCH = 1.1  # as much longer as a side may be before LLaVA-OneVision makes a grid smaller


def tiled(rows: int, columns: int, side: int) -> ImageTokens:
    """Tiles of side x side tokens, one after the other, then the image whole if they are more than
    one. The image is stretched to fill the tiles.
    """
    each = side * side
    places = tuple(
        ((y // side) * columns + x // side) * each + y % side * side + x % side
        for y in range(rows * side)
        for x in range(columns * side)
    )
    grids = [Grid(rows * side, columns * side, places)]
    if rows * columns > 1:
        whole = range(len(places), len(places) + each)
        grids.insert(0, Grid(side, side, tuple(whole)))
    return ImageTokens(tuple(range(sum(len(grid.places) for grid in grids))), tuple(grids))


def canvas(processor: Any, image: Size) -> tuple[int, int]:
    """Rows and columns of the tiles that InternVL's processor cuts an image into."""
    tile = processor.size["height"], processor.size["width"]
    columns, rows = get_optimal_tiled_canvas(
        (image[1], image[0]), tile, processor.min_patches, processor.max_patches
    )
    return rows, columns


def split(processor: Any, image: Size) -> tuple[int, int]:
    """Rows and columns of the tiles that Idefics3's or SmolVLM's processor cuts an image into: it
    tells them, of any image of that size.
    """
    grid = processor(Image.new("RGB", image), return_row_col_info=True, return_tensors="pt")
    return max(1, int(grid["rows"][0][0])), max(1, int(grid["cols"][0][0]))


def anyres(config: Any, image: Size) -> ImageTokens:
    """LLaVA-NeXT and LLaVA-OneVision: the image whole, then fitted into tiles, without the rows or
    columns that are padding, and a token at the end of each row.
    """
    vision = config.vision_config
    side = vision.image_size // vision.patch_size
    best = select_best_resolution((image[1], image[0]), config.image_grid_pinpoints)
    rows, columns = (length // vision.image_size * side for length in best)
    above, before = _padding(rows, columns, image)
    box = _fitted((best[1], best[0]), image, before / columns, above / rows)
    rows, columns = _at_most(config, side, rows - 2 * above, columns - 2 * before)
    whole = Grid(side, side, tuple(range(side**2)))
    first = side**2
    places = [first + y * (columns + 1) + x for y in range(rows) for x in range(columns)]
    tiles = Grid(rows, columns, tuple(places), box)
    return ImageTokens(tuple(range(first + rows * (columns + 1))), (whole, tiles))


def _padding(rows: int, columns: int, image: Size) -> tuple[int, int]:
    """The rows above, and the columns before, that the model takes away; as many after."""
    width, height = image
    if width / height > columns / rows:
        return (rows - int(round(height * (columns / width), 7))) // 2, 0
    return 0, (columns - int(round(width * (rows / height), 7))) // 2


def _fitted(canvas: Size, image: Size, before: float, above: float) -> Box:
    """What remains of the canvas, on the image, without these shares of it on either side."""
    across, down = (wide / length for wide, length in zip(canvas, image, strict=True))
    scale = min(across, down)
    width, height = (
        min(math.ceil(length * scale), wide) for length, wide in zip(image, canvas, strict=True)
    )
    left, top = (canvas[0] - width) // 2, (canvas[1] - height) // 2
    x, y = image[0] / width, image[1] / height  # pixels of the image for one of the canvas
    return (
        (before * canvas[0] - left) * x,
        (above * canvas[1] - top) * y,
        ((1 - before) * canvas[0] - left) * x,
        ((1 - above) * canvas[1] - top) * y,
    )


def _at_most(config: Any, side: int, rows: int, columns: int) -> tuple[int, int]:
    """The grid, smaller where it has many more tokens than ``anyres_max_9`` allows: nine tiles'."""
    most = re.fullmatch(r"anyres_max_(\d+)", getattr(config, "vision_aspect_ratio", "") or "")
    ratio = math.sqrt(rows * columns / (int(most[1]) * side**2)) if most else 0
    return (int(rows // ratio), int(columns // ratio)) if ratio > _MUCH else (rows, columns)
