"""Draws docs/patches/*.png: ``python -m tests.models.draw``.

A white square on a black image, wide, tall and small; clear are the patches of the tokens that see
most of it, as real pixels tell (:mod:`tests.models.eyes`), and in fog all others.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from torch import Tensor

from foveate.models.token_grids import ImageTokens, image_tokens
from foveate.report import kept_picture

from .eyes import EYES, Eye, mask

FOLDER = Path(__file__).parents[2] / "docs" / "patches"
DRAWN = {
    "llava_crop": ("LLaVA-1.5, crop", "resizes the shorter side to 336 and crops the middle"),
    "llava_pad": ("LLaVA-1.5, pad", "pads to a square, then resizes it to 336"),
    "llava_next": ("LLaVA-NeXT", "sees it whole and fitted into tiles of 336"),
    "internvl": ("InternVL", "stretches it over up to 12 tiles of 448, and sees it whole"),
    "qwen2_vl": ("Qwen2-VL", "resizes it to multiples of 28; a token is 2 x 2 patches"),
    "pixtral": ("Pixtral", "resizes it to multiples of 16; other tokens end its lines"),
}
SQUARES = {(640, 160): (352, 48), (150, 600): (30, 350), (40, 30): (12, 12)}  # size: left, top


def drawn(name: str) -> Image.Image:
    """One of the pictures."""
    kind, does = DRAWN[name]
    images, placed, held = [], [], []
    for size, corner in SQUARES.items():
        image, found, share = _one(EYES[kind], size, corner, sum(len(one) for one in held))
        images.append(image)
        placed.append(found)
        held.append(share)
    title = f"{kind}: the processor {does}"
    return kept_picture(
        images, placed, [(title, "Clear: the tokens that see the square.", torch.cat(held))]
    )


def _one(
    eye: Eye, size: tuple[int, int], corner: tuple[int, int], start: int
) -> tuple[Image.Image, ImageTokens, Tensor]:
    """An image, where its tokens stand in a prompt from ``start`` on, and which see the square."""
    image = Image.new("RGB", size)
    side = max(8, min(size) // 4)
    image.paste("white", (*corner, corner[0] + side, corner[1] + side))
    inputs, bright = eye.sees(image)
    vision = torch.nn.functional.pad(mask(eye, inputs, len(bright)), (start, 0))
    reader = SimpleNamespace(image_processor=eye.processor)
    (found,) = image_tokens(vision, inputs, [size], eye.config, reader) or []
    sees = torch.zeros(len(vision))
    sees[vision] = bright.nan_to_num()
    share = torch.zeros(len(vision))
    for grid in found.grids:
        mine = sees[list(grid.places)]
        share[list(grid.places)] = (mine >= 0.5 * mine.max()).float()
    return image, found, share[start:]


def main() -> None:
    """Writes all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name in DRAWN:
        drawn(name).quantize(32).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
