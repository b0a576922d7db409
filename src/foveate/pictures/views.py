"""Views of a prompt's images as the model sees them: complete, cropped, padded, or in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from foveate.models.token_grids import Box, Grid, ImageTokens

MARGIN = (128, 128, 128)
"""Colour of padding in a view."""


class View(NamedTuple):
    """Image with the grid of tokens over it or over a part; None if the cells are not known."""

    name: str
    image: Image.Image
    grid: Grid | None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Indices of the grid's tokens in the prompt, row by row."""
        return self.grid.indices if self.grid else ()

    @property
    def seen(self) -> Image.Image:
        """Part of the image under the grid: cropped and padded as the processor does."""
        box = self.grid.box if self.grid else None
        if box is None:
            return self.image
        return part_of(self.image, box, (round(box[2] - box[0]), round(box[3] - box[1])))


def views_of(
    images: Sequence[Image.Image],
    tokens: Sequence[ImageTokens] | None,
    times: Sequence[float] = (),
) -> list[View]:
    """Return a view for each grid of each image, or views without grids if ``tokens`` is None.

    The first images are frames of a video at ``times``, in seconds.
    """
    names = [f"frame at {time:.1f} s" for time in times]
    names += [f"image {n}" for n in range(1, len(images) - len(times) + 1)]
    if tokens is None:
        return [View(name, image, None) for name, image in zip(names, images, strict=True)]
    return [
        View(f"{name}{part}", image, grid)
        for name, image, cells in zip(names, images, tokens, strict=True)
        for part, grid in zip(_parts(len(cells.grids)), cells.grids, strict=True)
    ]


def _parts(grids: int) -> tuple[str, ...]:
    return ("",) if grids == 1 else (" whole", " in tiles")


def part_of(image: Image.Image, box: Box, size: tuple[int, int]) -> Image.Image:
    """Return a box of an image, scaled to ``size``; outside the image it is ``MARGIN``."""
    wide, high = (max(1, length) for length in size)
    small = image.convert("RGB")
    if (
        wide < box[2] - box[0]
    ):  # the transform below samples single pixels, so shrink with averaging first
        shrunk = wide / (box[2] - box[0])
        small = small.resize(
            (max(1, round(image.width * shrunk)), max(1, round(image.height * shrunk)))
        )
    across, down = (a / b for a, b in zip(small.size, image.size, strict=True))
    within = box[0] * across, box[1] * down, box[2] * across, box[3] * down
    return small.transform(
        (wide, high), Image.Transform.EXTENT, within, Image.Resampling.BILINEAR, fillcolor=MARGIN
    )
