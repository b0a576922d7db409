"""What an image processor that makes one array of pixels of an image leaves of it, and where."""

from __future__ import annotations

from typing import Any

from foveate.models.token_grids.grid import Box, Size

_PADS = "LlavaImageProcessor"  # to a square, before anything else
_KNOWN = (_PADS, "CLIPImageProcessor", "SiglipImageProcessor", "Gemma3ImageProcessor")
"""Names of classes, without the ending of a backend: these resize, then crop the middle."""


def kind_of(processor: Any) -> str:
    """The name of an image processor's class, whichever library it computes with."""
    return type(processor).__name__.removesuffix("Pil").removesuffix("Fast")


def seen_box(processor: Any, image: Size) -> tuple[Box, Size] | None:
    """Where the array of pixels lies on an image, and how large it is; None where that is not
    known for this processor.
    """
    kind = kind_of(processor)
    pads = bool(getattr(processor, "do_pad", False))
    if kind not in _KNOWN or (pads and kind != _PADS):
        return None
    box: Box = _squared(image) if pads else (0.0, 0.0, *image)
    pixels: Size | None = (round(box[2] - box[0]), round(box[3] - box[1]))
    if processor.do_resize:
        pixels = _resized(pixels, processor.size)
    if pixels and getattr(processor, "do_center_crop", False):
        box, pixels = _cropped(box, pixels, processor.crop_size)
    return (box, pixels) if pixels else None


def _squared(image: Size) -> Box:
    side = max(image)
    left, top = ((side - length) // 2 for length in image)
    return -left, -top, side - left, side - top


def _resized(pixels: Size | None, size: Any) -> Size | None:
    wanted = {name: length for name, length in dict(size).items() if length is not None}
    if set(wanted) == {"height", "width"}:
        return wanted["width"], wanted["height"]
    if pixels is None or set(wanted) != {"shortest_edge"}:
        return None
    short = wanted["shortest_edge"]
    width, height = (int(short * length / min(pixels)) for length in pixels)
    return width, height


def _cropped(box: Box, pixels: Size, crop: Any) -> tuple[Box, Size]:
    """The middle of so many pixels; where it is larger than them, what is beyond is padding."""
    left, top, right, bottom = box
    width, height = crop["width"], crop["height"]
    across, down = (right - left) / pixels[0], (bottom - top) / pixels[1]
    left += (pixels[0] - width) // 2 * across
    top += (pixels[1] - height) // 2 * down
    return (left, top, left + width * across, top + height * down), (width, height)
