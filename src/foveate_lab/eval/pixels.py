"""Bounds on the image sizes that a processor produces.

Processors like Qwen2-VL's preserve the aspect ratio and choose a size between a minimum and a
maximum number of pixels. Those like InternVL's cut an image into a bounded number of tiles. All
others have a fixed size, or other tiles, and nothing to bound.
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
"""Width and height in pixels."""


class Pixels(NamedTuple):
    """Bounds of an image: minimum and maximum pixels, and maximum tiles without the thumbnail.

    None leaves a bound as the processor has it. ``optional``: leave a processor without such bounds
    unchanged instead of refusing it.
    """

    minimum: int | None = None
    maximum: int | None = None
    tiles: int | None = None
    optional: bool = False


AS_THEY_ARE = Pixels()


def bounded(loaded: Loaded, pixels: Pixels) -> Loaded:
    """Return the model with these bounds in its processor; unchanged without bounds.

    Raises:
        InvalidInput: the processor has no such bound, or the bounds leave no size.
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
            f"{loaded.name} makes images of a fixed size, so {_format(pixels)} has no meaning for "
            "it. Leave it out."
        )
    minimum = images.size["shortest_edge"] if pixels.minimum is None else pixels.minimum
    maximum = images.size["longest_edge"] if pixels.maximum is None else pixels.maximum
    if minimum > maximum:
        raise InvalidInput(
            f"{loaded.name}: {_format(pixels)} leaves no size, as it asks for {minimum} to "
            f"{maximum} pixels. Give both min_pixels and max_pixels."
        )
    return _with(loaded, size=type(images.size)(shortest_edge=minimum, longest_edge=maximum))


def _in_tiles(loaded: Loaded, images: Any, pixels: Pixels) -> Loaded:
    if not _bounds_tiles(images):
        raise InvalidInput(
            f"{loaded.name} does not cut images into tiles as InternVL, so {_format(pixels)} has "
            "no meaning for it. Leave it out."
        )
    return _with(loaded, max_patches=pixels.tiles)


def _with(loaded: Loaded, **settings: Any) -> Loaded:
    """Return a copy of the model with these settings in its image processor."""
    reader = copy.copy(loaded.reader)
    reader.image_processor = copy.copy(reader.image_processor)
    for name, value in settings.items():
        setattr(reader.image_processor, name, value)
    return replace(loaded, reader=reader)


def seen_sizes(inputs: Mapping[str, Any], config: PreTrainedConfig) -> tuple[Size, ...]:
    """Return the image sizes after a processor that reports a grid; else empty."""
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


def _format(pixels: Pixels) -> str:
    bounds = (
        ("min_pixels", pixels.minimum),
        ("max_pixels", pixels.maximum),
        ("max_tiles", pixels.tiles),
    )
    return " with ".join(f"{name}={value}" for name, value in bounds if value is not None)
