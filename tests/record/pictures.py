"""Drawn images of different sizes."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

_SIZES = ((30, 20), (16, 40), (50, 22), (24, 24))


def image(number: int) -> Image.Image:
    """Return one of four gradients."""
    drawn = Image.linear_gradient("L").rotate(40 * number)
    return Image.merge("RGB", [drawn, drawn.rotate(90), drawn.rotate(180)]).resize(_SIZES[number])


def write_picture(path: Path) -> None:
    """Write an image, red on the left and blue on the right."""
    picture = Image.new("RGB", (40, 30), (200, 20, 20))
    picture.paste((20, 20, 200), (20, 0, 40, 30))
    picture.save(path)
