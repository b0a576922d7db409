"""The images of a prompt as the model sees them: whole, in part, with a margin, or in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from foveate.models.token_grids import Box, Grid, ImageTokens

MARGIN = (128, 128, 128)
"""What stands beyond an image where a processor pads: it pads with one colour, too."""


class View(NamedTuple):
    """An image, and the grid of tokens that sees it, or a part of it. Without a grid nobody knows
    where on it its tokens stand.
    """

    name: str
    image: Image.Image
    grid: Grid | None

    @property
    def places(self) -> tuple[int, ...]:
        """The grid's tokens, row by row."""
        return self.grid.indices if self.grid else ()

    @property
    def seen(self) -> Image.Image:
        """What the grid sees: cut where the processor crops, with a margin where it pads."""
        box = self.grid.box if self.grid else None
        if box is None:
            return self.image
        return part_of(self.image, box, (round(box[2] - box[0]), round(box[3] - box[1])))


def views_of(
    images: Sequence[Image.Image],
    tokens: Sequence[ImageTokens] | None,
    times: Sequence[float] = (),
) -> list[View]:
    """A view for each grid of each image; of images whose tokens are not known, one without. The
    first images are frames at these times, in seconds.
    """
    names = [f"frame at {time:.1f} s" for time in times]
    names += [f"image {n}" for n in range(1, len(images) - len(times) + 1)]
    if tokens is None:
        return [View(name, image, None) for name, image in zip(names, images, strict=True)]
    return [
        View(f"{name}{part}", image, grid)
        for name, image, one in zip(names, images, tokens, strict=True)
        for part, grid in zip(_parts(len(one.grids)), one.grids, strict=True)
    ]


def _parts(grids: int) -> tuple[str, ...]:
    return ("",) if grids == 1 else (" whole", " in tiles")


def part_of(image: Image.Image, box: Box, size: tuple[int, int]) -> Image.Image:
    """A box of an image, which may reach beyond it, at a size of at least a pixel."""
    wide, high = (max(1, length) for length in size)
    small = image.convert("RGB")
    if wide < box[2] - box[0]:  # the transform below takes single pixels, and leaves others out
        shrunk = wide / (box[2] - box[0])
        small = small.resize(
            (max(1, round(image.width * shrunk)), max(1, round(image.height * shrunk)))
        )
    across, down = (a / b for a, b in zip(small.size, image.size, strict=True))
    within = box[0] * across, box[1] * down, box[2] * across, box[3] * down
    return small.transform(
        (wide, high), Image.Transform.EXTENT, within, Image.Resampling.BILINEAR, fillcolor=MARGIN
    )
