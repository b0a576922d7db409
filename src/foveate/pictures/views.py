"""Views of a prompt's images as the model sees them: complete, cropped, padded, or in tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image

from foveate.models.token_grids import Box, Grid, ImageTokens

MARGIN = (128, 128, 128)
"""Colour of padding in a view."""


class View(NamedTuple):
    """Image with the grids of tokens over it or over parts; none if the cells are not known."""

    name: str
    image: Image.Image
    grids: tuple[Grid, ...] = ()

    @property
    def grid(self) -> Grid | None:
        """Grid of a view that has one."""
        return self.grids[0] if self.grids else None

    @property
    def tokens(self) -> tuple[int, ...]:
        """Indices of the grids' tokens in the prompt, row by row."""
        return tuple(index for grid in self.grids for index in grid.indices)

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
    line_by_line: bool = True,
) -> list[View]:
    """Return a view for each grid of each image, or views without grids if ``tokens`` is None.

    The first images are frames of a video at ``times``, in seconds. Unless ``line_by_line``, the
    lines of a text are grids of one view.
    """
    names = [f"frame at {time:.1f} s" for time in times]
    names += [f"image {n}" for n in range(1, len(images) - len(times) + 1)]
    if tokens is None:
        return [View(name, image) for name, image in zip(names, images, strict=True)]
    return [
        View(f"{name}{part}", image, grids)
        for name, image, cells in zip(names, images, tokens, strict=True)
        for part, grids in _parts(cells, line_by_line)
    ]


def _parts(cells: ImageTokens, line_by_line: bool) -> list[tuple[str, tuple[Grid, ...]]]:
    """Return what each view adds to an image's name, and its grids."""
    if cells.lines and not line_by_line:
        return [("", cells.grids)]
    names = [f", line {number}" for number in range(1, len(cells.grids) + 1)]
    if not cells.lines:
        names = [""] if len(cells.grids) == 1 else [" whole", " in tiles"]
    return [(name, (grid,)) for name, grid in zip(names, cells.grids, strict=True)]


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
