"""Draws docs/patches/*.png: ``python -m tests.models.draw``.

A white square on a black image, wide, tall and small; clear are the patches of the tokens that see
most of it, as real pixels tell (:mod:`tests.models.eyes`), and in fog all others.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from transformers import CLIPImageProcessorPil
from transformers.utils.constants import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD

from foveate.models.token_grids import ImageTokens, image_tokens
from foveate.pictures import kept_picture
from foveate.pictures.strips import FAINT, GAP, beside, stacked, text_strip
from foveate_lab.convert.clip import image_processor
from foveate_lab.eval.padding import padded

from .eyes import Eye, mask
from .published import CLIP, EYES

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
        mine = sees[list(grid.indices)]
        share[list(grid.indices)] = (mine >= 0.5 * mine.max()).float()
    return image, found, share[start:]


def routes() -> tuple[Image.Image, dict[str, Tensor]]:
    """A picture of 320 x 80 with words at both ends, and the pixels that LLaVA-1.5 gets of it: from
    the hub's layout as it is, from that with padding, and from a converted directory.
    """
    image = Image.new("RGB", (320, 80), "white")
    for x, word, side in ((6, "FIRST", "lm"), (160, "MIDDLE", "mm"), (314, "LAST", "rm")):
        font = ImageFont.load_default(26)
        ImageDraw.Draw(image).text((x, 40), word, fill="black", font=font, anchor=side)
    side = {"height": 336, "width": 336}
    hub = CLIPImageProcessorPil(size={"shortest_edge": 336}, crop_size=side)
    processors = {
        "hub": hub,
        "hub, pad_images=True": padded(SimpleNamespace(image_processor=hub)).image_processor,
        "converted": image_processor(CLIP, None, square=True),
    }
    pixels = {
        name: one(image, return_tensors="pt")["pixel_values"][0] for name, one in processors.items()
    }
    return image, pixels


def of_routes() -> Image.Image:
    """The picture of ``routes``."""
    image, pixels = routes()
    panels = [image, *(_unnormalised(one).resize((200, 200)) for one in pixels.values())]
    names = [
        text_strip(text, 12, panel.width, FAINT)
        for text, panel in zip(("given, 320 x 80", *pixels), panels, strict=True)
    ]
    wide = sum(panel.width + GAP for panel in panels) - GAP
    title = text_strip("What LLaVA-1.5 sees of a wide image, by layout of its directory", 18, wide)
    rows = [(0, title), (10, beside(panels, wide)), (3, beside(names, wide))]
    return stacked(rows, wide, margin=22)


def _unnormalised(pixels: Tensor) -> Image.Image:
    mean, std = (torch.tensor(one)[:, None, None] for one in (OPENAI_CLIP_MEAN, OPENAI_CLIP_STD))
    levels = (255 * (pixels * std + mean)).round().clamp(0, 255).byte()
    return Image.fromarray(levels.permute(1, 2, 0).numpy())


PICTURES = {name: partial(drawn, name) for name in DRAWN} | {"llava_routes": of_routes}


def main() -> None:
    """Writes all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        draw().quantize(32).save(FOLDER / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
