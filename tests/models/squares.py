"""White squares on black images, and which tokens see how much of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from foveate.models.token_grids import (
    Box,
    Grid,
    ImageTokens,
    Number,
    Size,
    image_tokens,
    tokens_in,
)

from .eyes import Eye, mask

SIZES = {
    "wide": (640, 160),
    "tall": (150, 600),
    "small": (40, 30),
    "square": (500, 500),
    "large": (1500, 1100),
}
BLURRED = {("LLaVA-OneVision", "large"): 0.2}  # its tokens are made fewer between each other
PLACES = [(0.02, 0.02), (0.5, 0.78), (0.3, 0.4), (0.78, 0.4)]


def reader(eye: Eye) -> Any:
    return SimpleNamespace(image_processor=eye.processor)


def square(size: Size, place: tuple[float, float]) -> tuple[Image.Image, Box]:
    """A white square of a fifth of the shorter side on black, and its box."""
    side = max(2, min(size) // 5)
    left, top = (round(length * share) for length, share in zip(size, place, strict=True))
    image = Image.new("RGB", size)
    box = left, top, left + side, top + side
    image.paste("white", box)
    return image, box


def covered(grid: Grid, box: Box, size: Size) -> Tensor:
    """The share of each cell that lies in the box, [rows, columns]."""
    left, top, right, bottom = grid.on(size)

    def along(start: Number, end: Number, low: Number, high: Number, cells: int) -> Tensor:
        ends = torch.linspace(low, high, cells + 1)
        inside = ends[1:].clamp_max(end) - ends[:-1].clamp_min(start)
        return inside.clamp_min(0) / (ends[1] - ends[0])

    down = along(box[1], box[3], top, bottom, grid.rows)
    return down[:, None] * along(box[0], box[2], left, right, grid.columns)


def seen(eye: Eye, image: Image.Image) -> tuple[ImageTokens, Tensor]:
    """Where its tokens are said to be, and what each token of the prompt sees (NaN: no image)."""
    inputs, bright = eye.sees(image)
    vision = mask(eye, inputs, len(bright))
    (found,) = image_tokens(vision, inputs, [image.size], eye.config, reader(eye)) or []
    sees = torch.full((len(vision),), torch.nan)
    sees[vision] = bright
    return found, sees


def check(name: str, eye: Eye, shape: str, place: tuple[float, float]) -> None:
    """Each token sees as much of a square as lies under it, and those that see it are marked."""
    size = SIZES[shape]
    blur = BLURRED.get((name, shape), 0.25 if shape == "small" else 0.02)
    image, box = square(size, place)
    found, sees = seen(eye, image)
    lines = set(found.indices) - {at for grid in found.grids for at in grid.indices}
    assert sees[sorted(lines)].isnan().all()
    for grid in found.grids:
        bright = sees[list(grid.indices)].view(grid.rows, grid.columns)
        torch.testing.assert_close(bright, covered(grid, box, size), atol=blur, rtol=0)
        marked = tokens_in(grid, box, size)
        if marked:
            assert grid.indices[int(bright.argmax())] in marked
        else:
            assert float(bright.max()) < 0.02  # the processor cuts it off
