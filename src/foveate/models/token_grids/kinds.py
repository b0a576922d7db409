"""How the models that are known make tokens of images: one way for each kind.

A grid counts its image's own tokens from 0. No way returns tokens that it does not know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foveate.models.token_grids.grid import Box, Grid, ImageTokens, Size
from foveate.models.token_grids.processor import kind_of, seen_box
from foveate.models.token_grids.tiles import anyres, canvas, split, tiled

_ONE_EACH = (
    "llava",
    "vipllava",
    "paligemma",
    "foveate_mobilevlm_v2",
    "foveate_qwen_vl",  # each of its queries has the position of a cell
)
_ONE_GRID = (*_ONE_EACH, "gemma3", "shieldgemma2")  # whose pixels may hold crops beside images
_PATCHES = (
    "qwen2_vl",
    "qwen2_5_vl",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "glm4v",
    "glm4v_moe",
    "glm46v",
)
_STRETCH = ("Qwen2VLImageProcessor", "Glm4vImageProcessor", "Glm46VImageProcessor")
"""What these types have, and others: an image is stretched to whole patches, without padding."""
_ANYRES = ("llava_next", "llava_onevision")
_SPLIT = ("idefics3", "smolvlm")


def of_each(
    inputs: Mapping[str, Any], images: Sequence[Size], config: Any, processor: Any, tokens: int
) -> list[ImageTokens]:
    """The tokens of each frame of the videos and of each image, of which there are so many
    together; none where they are not known. ``processor`` is the image processor, or None.
    """
    if getattr(config, "vision_config", None) is None:
        return []
    frames = _in_frames(inputs, config)
    rest = images[sum(frames_of_each(inputs)) :]
    return [*frames, *(_of_images(inputs, rest, config, processor, tokens) if rest else ())]


def _of_images(
    inputs: Mapping[str, Any], images: Sequence[Size], config: Any, processor: Any, tokens: int
) -> list[ImageTokens]:
    kind = config.model_type
    stretched = kind in _PATCHES or kind_of(processor) in _STRETCH
    if stretched and inputs.get("image_grid_thw") is not None:
        return _in_patches(inputs["image_grid_thw"].tolist(), config)
    sizes = _sizes(inputs)
    if sizes and config.vision_config.model_type == "pixtral":
        return _in_pixels(sizes, images, config)
    if kind in _ANYRES and sizes == list(images):
        return [anyres(config, image) for image in images]
    pixels = inputs.get("pixel_values")
    if processor is None or pixels is None:
        return []
    if kind == "internvl" and kind_of(processor) == "GotOcr2ImageProcessor":
        return _in_tiles(len(pixels), images, config, processor)
    if kind in _SPLIT:
        vision = config.vision_config
        side = vision.image_size // vision.patch_size // config.scale_factor
        return [tiled(*split(processor, image), side) for image in images]
    if kind in _ONE_GRID and len(pixels) == len(images):
        shape = pixels.shape[-1], pixels.shape[-2]
        each = [
            _one_grid(shape, image, config, processor, tokens // len(images)) for image in images
        ]
        return [one for one in each if one]
    return []


def frames_of_each(inputs: Mapping[str, Any]) -> list[int]:
    """How many grids of tokens each video is, each of a frame or, as Qwen-VL's, of two."""
    grids, pixels = inputs.get("video_grid_thw"), inputs.get("pixel_values_videos")
    if grids is not None:
        return [frames for frames, _, _ in grids.tolist()]
    return [] if pixels is None else [pixels.shape[1]] * pixels.shape[0]


def _in_frames(inputs: Mapping[str, Any], config: Any) -> list[ImageTokens]:
    """Qwen-VL's patches, frame by frame; LLaVA-OneVision's, of which it makes one of four, with a
    token behind each video that ends it.
    """
    grids = inputs.get("video_grid_thw")
    if grids is not None and config.model_type in _PATCHES:
        merge = getattr(config.vision_config, "spatial_merge_size", 1)
        return [_whole(h // merge, w // merge) for t, h, w in grids.tolist() for _ in range(t)]
    if config.model_type != "llava_onevision" or "pixel_values_videos" not in inputs:
        return []
    videos, frames = inputs["pixel_values_videos"].shape[:2]
    side = math.ceil(config.vision_config.image_size // config.vision_config.patch_size / 2)
    frame = _whole(side, side)
    last = ImageTokens((*frame.places, len(frame.places)), frame.grids)
    return [*[frame] * (frames - 1), last] * videos


def count_of(inputs: Mapping[str, Any], config: Any) -> int | None:
    """Of how many images the inputs are, with the frames of videos; None where they do not tell."""
    names = ["image_grid_thw", "image_sizes"]
    if config.model_type in _ONE_EACH:
        names.append("pixel_values")
    inputs_given = (inputs.get(name) for name in names)
    images = next((len(value) for value in inputs_given if value is not None), None)
    frames = sum(frames_of_each(inputs))
    return frames + (images or 0) if frames else images


def _sizes(inputs: Mapping[str, Any]) -> list[Size]:
    """Width and height of each image as the processor tells them, if it does."""
    sizes = inputs.get("image_sizes")
    if sizes is None:
        return []
    sides = torch.as_tensor(sizes, dtype=torch.long, device="cpu")
    return [(width, height) for height, width in sides.tolist()]


def _in_patches(grids: Sequence[Sequence[int]], config: Any) -> list[ImageTokens]:
    """Qwen-VL's and GLM's: the image's patches, so many by so many of them in a token."""
    merge = getattr(config.vision_config, "spatial_merge_size", 1)
    return [_whole(t * h // merge, w // merge) for t, h, w in grids]


def _in_pixels(sizes: Sequence[Size], images: Sequence[Size], config: Any) -> list[ImageTokens]:
    """Pixtral's, Mistral 3's and the demo's: an image of whole patches; other tokens end lines."""
    side = config.vision_config.patch_size * getattr(config, "spatial_merge_size", 1)
    return [
        _whole(height // side, width // side, _covered((width, height), side, (0, 0, *image)))
        for (width, height), image in zip(sizes, images, strict=False)
    ]


def _in_tiles(tiles: int, images: Sequence[Size], config: Any, processor: Any) -> list[ImageTokens]:
    """InternVL's: tiles and a thumbnail, or, of a processor that was told not to cut, images."""
    vision = config.vision_config
    side = round(vision.image_size[0] // vision.patch_size[0] * config.downsample_ratio)
    cut = [canvas(processor, image) for image in images]
    if tiles == len(images):
        cut = [(1, 1)] * tiles
    counts = (rows * columns + (rows * columns > 1) for rows, columns in cut)
    return [tiled(*each, side) for each in cut] if sum(counts) == tiles else []


def _one_grid(
    pixels: Size, image: Size, config: Any, processor: Any, tokens: int
) -> ImageTokens | None:
    """LLaVA's and others': one array of pixels, and over it one grid of so many tokens."""
    seen = seen_box(processor, image)
    if seen is None or seen[1] != pixels:
        return None
    side = config.vision_config.patch_size
    columns, rows = (length // side for length in pixels)
    pooled = math.isqrt(rows * columns // max(tokens, 1))  # patches to a token's side
    if not pooled or columns % pooled or rows % pooled:
        return None
    return _whole(rows // pooled, columns // pooled, _covered(pixels, side, seen[0]))


def _covered(pixels: Size, side: int, box: Box) -> Box:
    """The part of a box that whole patches cover: what is left of its pixels at the right and at
    the bottom makes no patch.
    """
    left, top, right, bottom = box
    across, down = (length // side * side / length for length in pixels)
    return left, top, left + (right - left) * across, top + (bottom - top) * down


def _whole(rows: int, columns: int, box: Box | None = None) -> ImageTokens:
    places = tuple(range(rows * columns))
    return ImageTokens(places, (Grid(rows, columns, places, box),))
