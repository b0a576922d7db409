"""What a processor makes of an image: within which bounds, and of what size.

Processors as Qwen2-VL's keep an image's shape and choose its size between a smallest and a largest
number of pixels; those as InternVL's cut it into tiles, at most so many. All others have one size,
or other tiles, and nothing to bound.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from transformers import PreTrainedConfig

from foveate.errors import InvalidInput
from foveate.loading.model import Loaded

Size = tuple[int, int]
"""Width and height."""


class Pixels(NamedTuple):
    """The fewest and the most pixels that a processor makes of an image, and the most tiles, beside
    that of the image as a whole; None as it has it. ``optional``: a processor that bounds nothing
    stays as it is, and is not refused.
    """

    least: int | None = None
    most: int | None = None
    tiles: int | None = None
    optional: bool = False


AS_THEY_ARE = Pixels()


def bounded(loaded: Loaded, pixels: Pixels) -> Loaded:
    """Return the model, whose processor has these bounds; itself where there are none.

    Raises:
        InvalidInput: it does not bound pixels or tiles, or they exclude each other.
    """
    if pixels == AS_THEY_ARE:
        return loaded
    images: Any = getattr(loaded.reader, "image_processor", None)
    has_bounds = _bounds_pixels if pixels.tiles is None else _bounds_tiles
    if pixels.optional and not has_bounds(images):
        return loaded
    if pixels.tiles is not None:
        return _in_tiles(loaded, images, pixels)
    if not _bounds_pixels(images):
        raise InvalidInput(
            f"{loaded.name} makes images of a fixed size, so {_said(pixels)} has no meaning for "
            "it. Leave it out."
        )
    least = images.size["shortest_edge"] if pixels.least is None else pixels.least
    most = images.size["longest_edge"] if pixels.most is None else pixels.most
    if least > most:
        raise InvalidInput(
            f"{loaded.name}: {_said(pixels)} leaves no size, as it asks for {least} to {most} "
            "pixels. Give both min_pixels and max_pixels."
        )
    return _with(loaded, size=type(images.size)(shortest_edge=least, longest_edge=most))


def _in_tiles(loaded: Loaded, images: Any, pixels: Pixels) -> Loaded:
    if not _bounds_tiles(images):
        raise InvalidInput(
            f"{loaded.name} does not cut images into tiles as InternVL, so {_said(pixels)} has no "
            "meaning for it. Leave it out."
        )
    return _with(loaded, max_patches=pixels.tiles)


def _with(loaded: Loaded, **settings: Any) -> Loaded:
    """Return the model with these settings of its image processor; the given one keeps its own."""
    reader = copy.copy(loaded.reader)
    reader.image_processor = copy.copy(reader.image_processor)
    for name, value in settings.items():
        setattr(reader.image_processor, name, value)
    return replace(loaded, reader=reader)


def seen_sizes(inputs: Mapping[str, Any], config: PreTrainedConfig) -> tuple[Size, ...]:
    """The sizes to which a processor with a grid brought the images of a prompt; else none."""
    vision: Any = getattr(config, "vision_config", None)
    if "image_grid_thw" not in inputs or not hasattr(vision, "patch_size"):
        return ()
    side = int(vision.patch_size)
    return tuple((w * side, h * side) for _, h, w in inputs["image_grid_thw"].tolist())


def _bounds_pixels(images: Any) -> bool:
    takes = getattr(getattr(images, "valid_kwargs", None), "__annotations__", {})
    size = getattr(images, "size", None) or {}
    return "min_pixels" in takes and "shortest_edge" in size and "longest_edge" in size


def _bounds_tiles(images: Any) -> bool:
    return getattr(images, "max_patches", None) is not None


def _said(pixels: Pixels) -> str:
    given = (
        ("min_pixels", pixels.least),
        ("max_pixels", pixels.most),
        ("max_tiles", pixels.tiles),
    )
    return " with ".join(f"{name}={value}" for name, value in given if value is not None)
