"""Token grids of each known kind of model, and the resizing and cropping of image processors.

A grid's indices count its own image's tokens from 0. Unknown kinds return no tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.image_processing_utils import select_best_resolution
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

from foveate.models.token_grids.grid import Box, Grid, ImageTokens, Size

_MUCH = 1.1  # ratio of sides above which LLaVA-OneVision shrinks a grid
_ONE_EACH = (
    "llava",
    "vipllava",
    "paligemma",
    "foveate_mobilevlm_v2",
    "foveate_qwen_vl",  # each of its queries has the position of a cell
)
_ONE_GRID = (*_ONE_EACH, "gemma3", "shieldgemma2")  # their pixels may include crops
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
"""Image processors, of these types and others, that stretch an image to whole patches."""
_ANYRES = ("llava_next", "llava_onevision")
_SPLIT = ("idefics3", "smolvlm")
_PADS = "LlavaImageProcessor"  # may pad an image to a square, before anything else
_KNOWN = (_PADS, "CLIPImageProcessor", "SiglipImageProcessor", "Gemma3ImageProcessor")
"""Image processors, without the suffix of a backend, that resize and then crop the middle."""


READER = "foveate_reader"
_COLUMN = 1  # kind of the reader's tokens that stand for a column of a line of text


def of_each(
    inputs: Mapping[str, Any], images: Sequence[Size], config: Any, processor: Any, tokens: int
) -> list[ImageTokens]:
    """Return the tokens of each frame of the videos, then of each image; an empty list if they are
    not known. ``tokens`` is their total number, ``processor`` the image processor or None.
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
    if kind == READER and inputs.get("pixel_values") is not None:
        return [
            _in_lines(pixels, image)
            for pixels, image in zip(inputs["pixel_values"], images, strict=False)
        ]
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
        grids = [
            _one_grid(shape, image, config, processor, tokens // len(images)) for image in images
        ]
        return [grid for grid in grids if grid]
    return []


def frames_of_each(inputs: Mapping[str, Any]) -> list[int]:
    """Return the number of token grids of each video; a grid is one frame, or two in Qwen-VL."""
    grids, pixels = inputs.get("video_grid_thw"), inputs.get("pixel_values_videos")
    if grids is not None:
        return [frames for frames, _, _ in grids.tolist()]
    return [] if pixels is None else [pixels.shape[1]] * pixels.shape[0]


def _in_frames(inputs: Mapping[str, Any], config: Any) -> list[ImageTokens]:
    """Return the grids of videos: Qwen-VL's patches frame by frame; LLaVA-OneVision's patches,
    pooled four to one, with a token that ends each video.
    """
    grids = inputs.get("video_grid_thw")
    if grids is not None and config.model_type in _PATCHES:
        merge = getattr(config.vision_config, "spatial_merge_size", 1)
        return [_full_grid(h // merge, w // merge) for t, h, w in grids.tolist() for _ in range(t)]
    if config.model_type != "llava_onevision" or "pixel_values_videos" not in inputs:
        return []
    videos, frames = inputs["pixel_values_videos"].shape[:2]
    side = math.ceil(config.vision_config.image_size // config.vision_config.patch_size / 2)
    frame = _full_grid(side, side)
    last = ImageTokens((*frame.indices, len(frame.indices)), frame.grids)
    return [*[frame] * (frames - 1), last] * videos


def count_of(inputs: Mapping[str, Any], config: Any) -> int | None:
    """Return the number of images in the inputs, frames of videos included; None if unknown."""
    names = ["image_grid_thw", "image_sizes"]
    if config.model_type in (*_ONE_EACH, READER):
        names.append("pixel_values")
    values = (inputs.get(name) for name in names)
    images = next((len(value) for value in values if value is not None), None)
    frames = sum(frames_of_each(inputs))
    return frames + (images or 0) if frames else images


def _sizes(inputs: Mapping[str, Any]) -> list[Size]:
    """Return each image's width and height from the processor's output, or an empty list."""
    sizes = inputs.get("image_sizes")
    if sizes is None:
        return []
    sides = torch.as_tensor(sizes, dtype=torch.long, device="cpu")
    return [(width, height) for height, width in sides.tolist()]


def _in_patches(grids: Sequence[Sequence[int]], config: Any) -> list[ImageTokens]:
    """Return grids of merged patches: Qwen-VL and GLM."""
    merge = getattr(config.vision_config, "spatial_merge_size", 1)
    return [_full_grid(t * h // merge, w // merge) for t, h, w in grids]


def _in_pixels(sizes: Sequence[Size], images: Sequence[Size], config: Any) -> list[ImageTokens]:
    """Return grids of whole patches, whose other tokens end lines: Pixtral, Mistral 3, the demo."""
    side = config.vision_config.patch_size * getattr(config, "spatial_merge_size", 1)
    return [
        _full_grid(height // side, width // side, _covered((width, height), side, (0, 0, *image)))
        for (width, height), image in zip(sizes, images, strict=False)
    ]


def _in_lines(pixels: Tensor, image: Size) -> ImageTokens:
    """Return a grid for each line of text: the reader.

    A token's last five values are its kind, 0 for padding, and its box as shares of the image.
    Tokens of other kinds stand between lines.
    """
    width, height = image
    kinds = pixels[:, -5].tolist()
    boxes = [
        (a * width, b * height, c * width, d * height) for a, b, c, d in pixels[:, -4:].tolist()
    ]
    grids = []
    for is_column, group in groupby(range(len(kinds)), lambda i: kinds[i] == _COLUMN):
        indices = tuple(group)
        if is_column:
            _, top, _, bottom = boxes[indices[len(indices) // 2]]  # a line may slope
            box = boxes[indices[0]][0], top, boxes[indices[-1]][2], bottom
            grids.append(Grid(1, len(indices), indices, box))
    return ImageTokens(tuple(range(sum(kind > 0 for kind in kinds))), tuple(grids), lines=True)


def _in_tiles(tiles: int, images: Sequence[Size], config: Any, processor: Any) -> list[ImageTokens]:
    """Return grids of tiles and a thumbnail: InternVL. If the processor did not cut, there is one
    tile per image.
    """
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
    """Return one grid over one array of pixels: LLaVA and others. None if they do not match."""
    seen = visible_box(processor, image)
    if seen is None or seen[1] != pixels:
        return None
    side = config.vision_config.patch_size
    columns, rows = (length // side for length in pixels)
    pooled = math.isqrt(rows * columns // max(tokens, 1))  # patches per side of a token
    if not pooled or columns % pooled or rows % pooled:
        return None
    return _full_grid(rows // pooled, columns // pooled, _covered(pixels, side, seen[0]))


def _covered(pixels: Size, side: int, box: Box) -> Box:
    """Return the part of a box that whole patches cover: remaining pixels at the right and at the
    bottom make no patch.
    """
    left, top, right, bottom = box
    across, down = (length // side * side / length for length in pixels)
    return left, top, left + (right - left) * across, top + (bottom - top) * down


def _full_grid(rows: int, columns: int, box: Box | None = None) -> ImageTokens:
    indices = tuple(range(rows * columns))
    return ImageTokens(indices, (Grid(rows, columns, indices, box),))


def tiled(rows: int, columns: int, side: int) -> ImageTokens:
    """Return tokens of an image that is stretched to fill tiles of side x side tokens. The tiles
    come one after the other, then an overview if there is more than one.
    """
    tile_tokens = side * side
    indices = tuple(
        ((y // side) * columns + x // side) * tile_tokens + y % side * side + x % side
        for y in range(rows * side)
        for x in range(columns * side)
    )
    grids = [Grid(rows * side, columns * side, indices)]
    if rows * columns > 1:
        overview = range(len(indices), len(indices) + tile_tokens)
        grids.insert(0, Grid(side, side, tuple(overview)))
    return ImageTokens(tuple(range(sum(len(grid.indices) for grid in grids))), tuple(grids))


def canvas(processor: Any, image: Size) -> tuple[int, int]:
    """Return rows and columns of the tiles into which InternVL's processor cuts an image."""
    tile = processor.size["height"], processor.size["width"]
    columns, rows = get_optimal_tiled_canvas(
        (image[1], image[0]), tile, processor.min_patches, processor.max_patches
    )
    return rows, columns


def split(processor: Any, image: Size) -> tuple[int, int]:
    """Return rows and columns of the tiles into which Idefics3's or SmolVLM's processor cuts an
    image, by running it on a blank image of that size.
    """
    grid = processor(Image.new("RGB", image), return_row_col_info=True, return_tensors="pt")
    return max(1, int(grid["rows"][0][0])), max(1, int(grid["cols"][0][0]))


def anyres(config: Any, image: Size) -> ImageTokens:
    """Return the tokens of LLaVA-NeXT and LLaVA-OneVision: an overview, then the image fitted into
    tiles, without rows or columns of padding, and with a token at the end of each row.
    """
    vision = config.vision_config
    side = vision.image_size // vision.patch_size
    best = select_best_resolution((image[1], image[0]), config.image_grid_pinpoints)
    rows, columns = (length // vision.image_size * side for length in best)
    above, before = _padding(rows, columns, image)
    box = _fitted((best[1], best[0]), image, before / columns, above / rows)
    rows, columns = _at_most(config, side, rows - 2 * above, columns - 2 * before)
    overview = Grid(side, side, tuple(range(side**2)))
    first = side**2
    indices = [first + y * (columns + 1) + x for y in range(rows) for x in range(columns)]
    tiles = Grid(rows, columns, tuple(indices), box)
    return ImageTokens(tuple(range(first + rows * (columns + 1))), (overview, tiles))


def _padding(rows: int, columns: int, image: Size) -> tuple[int, int]:
    """Return the rows above and the columns before the image that the model removes as padding; it
    removes as many on the other side.
    """
    width, height = image
    if width / height > columns / rows:
        return (rows - int(round(height * (columns / width), 7))) // 2, 0
    return 0, (columns - int(round(width * (rows / height), 7))) // 2


def _fitted(canvas: Size, image: Size, before: float, above: float) -> Box:
    """Return the box on the image of the canvas without these shares at either side."""
    across, down = (wide / length for wide, length in zip(canvas, image, strict=True))
    scale = min(across, down)
    width, height = (
        min(math.ceil(length * scale), wide) for length, wide in zip(image, canvas, strict=True)
    )
    left, top = (canvas[0] - width) // 2, (canvas[1] - height) // 2
    x, y = image[0] / width, image[1] / height  # image pixels per canvas pixel
    return (
        (before * canvas[0] - left) * x,
        (above * canvas[1] - top) * y,
        ((1 - before) * canvas[0] - left) * x,
        ((1 - above) * canvas[1] - top) * y,
    )


def _at_most(config: Any, side: int, rows: int, columns: int) -> tuple[int, int]:
    """Return the grid's rows and columns, shrunk if it has many more tokens than
    ``anyres_max_N`` allows, those of N tiles.
    """
    setting = re.fullmatch(r"anyres_max_(\d+)", getattr(config, "vision_aspect_ratio", "") or "")
    ratio = math.sqrt(rows * columns / (int(setting[1]) * side**2)) if setting else 0
    return (int(rows // ratio), int(columns // ratio)) if ratio > _MUCH else (rows, columns)


def kind_of(processor: Any) -> str:
    """Return the name of an image processor's class without its backend's suffix."""
    return type(processor).__name__.removesuffix("Pil").removesuffix("Fast")


def visible_box(processor: Any, image: Size) -> tuple[Box, Size] | None:
    """Return the box that the array of pixels covers on an image, and the array's size; None for an
    unknown processor.
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
    target = {name: length for name, length in dict(size).items() if length is not None}
    if set(target) == {"height", "width"}:
        return target["width"], target["height"]
    if pixels is None or set(target) != {"shortest_edge"}:
        return None
    short = target["shortest_edge"]
    width, height = (int(short * length / min(pixels)) for length in pixels)
    return width, height


def _cropped(box: Box, pixels: Size, crop: Any) -> tuple[Box, Size]:
    """Crop the middle of the pixels; a larger crop pads beyond them."""
    left, top, right, bottom = box
    width, height = crop["width"], crop["height"]
    across, down = (right - left) / pixels[0], (bottom - top) / pixels[1]
    left += (pixels[0] - width) // 2 * across
    top += (pixels[1] - height) // 2 * down
    return (left, top, left + width * across, top + height * down), (width, height)
