"""Model inputs for images and videos of a given size, and for a prompt around them.

Inputs for images come from running the processor on blank images. Inputs for videos are computed
from the settings of the processors of Qwen-VL, LLaVA-OneVision and InternVL: the number of patches
or tiles, and the text between them. These processors themselves need torchvision and all frames.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.auto import video_processing_auto

from foveate.errors import InvalidInput
from foveate.hf.model.modality import visual_token_ids
from foveate.memory.model import Bare
from foveate.memory.processors.blank import blank, undrawn
from foveate.memory.request import Request, Size, Unknown, check_tokens

Inputs = dict[str, Tensor]
Settings = Mapping[str, Any]

FILES = ("processor_config.json", "video_preprocessor_config.json", "preprocessor_config.json")
"""Files with a video processor's settings, in transformers' order; a part of the first file."""
_RATIO = 200  # limit of one side over the other in Qwen-VL's processors
_EDGES = ("shortest_edge", "longest_edge")
_SIDES = ("height", "width")


class Video(NamedTuple):
    """A video as a model takes it. A row has its visual tokens in ``runs`` equal runs of the
    placeholder ``token``, and ``words`` tokens of text that the processor writes around them.
    ``assumed`` names settings that no file has.
    """

    pixels: Inputs
    token: int
    runs: int = 1
    words: int = 0
    assumed: str = ""


def video(bare: Bare, request: Request) -> Video:
    """Return a request's video, with its pixels on "meta" and its grid of patches on the CPU.

    Raises:
        Unknown: an unsupported type of model, or unsupported settings.
    """
    make = _KINDS.get(bare.config.model_type)
    if make is None:
        raise Unknown(
            f"the tokens of a video are not known for {bare.config.model_type} (only for "
            f"{', '.join(sorted(_KINDS))}); count its frames as images with images=N"
        )
    if request.images:
        raise Unknown("images beside a video are not supported; size each by itself")
    return make(bare, request)


def settings(folder: Path | None) -> Settings:
    """Read the settings of the video processor in a model's folder; empty if no file has them."""
    for name in FILES if folder is not None else ():
        path = Path(folder or "") / name
        entries = json.loads(path.read_text()) if path.is_file() else {}
        if name == FILES[0]:
            entries = entries.get("video_processor") or {}
        if entries:
            return {key: value for key, value in entries.items() if value is not None}
    return {}


def _patches(bare: Bare, request: Request, volume: bool) -> Video:
    """Return a video in patches of two frames each (Qwen-VL). Bounds on pixels apply to a frame, or
    to the whole ``volume``.
    """
    # the pixels of a token's side: Qwen3-VL's defaults are for 32, Qwen2-VL's for 28
    tower, side = bare.config.vision_config, 32 if volume else 28
    default = {"shortest_edge": 128 * side**2, "longest_edge": 768 * side**2}
    declared = settings(bare.folder)
    merged = {
        "patch_size": tower.patch_size,
        "temporal_patch_size": tower.temporal_patch_size,
        "merge_size": tower.spatial_merge_size,
        **declared,
    }
    size = dict(merged.get("size") or default)
    if not volume:  # older files have the bounds as settings of their own
        names = zip(_EDGES, ("min_pixels", "max_pixels"), strict=True)
        size.update({edge: declared[name] for edge, name in names if name in declared})
    if not all(edge in size for edge in _EDGES) or merged.get("cap_pixels_per_frame"):
        raise Unknown(f"the video processor bounds pixels otherwise than is known here: {size}")
    pair, patch = merged["temporal_patch_size"], merged["patch_size"]
    if volume and request.frames < pair:
        raise Unknown(f"its video processor takes {pair} frames or more")
    frames = (request.frames, round(request.frames / pair) * pair) if volume else (1, 1)
    width, height = request.size or (0, 0)
    if max(width, height) > _RATIO * min(width, height):
        raise Unknown(f"its video processor takes no frames of {width}x{height}")
    factor = patch * merged["merge_size"]
    high, wide = _within((height, width), factor, (size[_EDGES[0]], size[_EDGES[1]]), *frames)
    grid = [-(-request.frames // pair), high // patch, wide // patch]
    shape = (math.prod(grid) * request.batch, 3 * pair * patch**2)
    pixels = {
        "pixel_values_videos": torch.empty(shape, dtype=bare.dtype, device="meta"),
        "video_grid_thw": torch.tensor([grid] * request.batch, dtype=torch.long, device="cpu"),
    }
    runs = grid[0] if volume else 1
    words = sum(_stamp(seconds) for seconds in _times(request, pair)) if volume else 0
    bounds = f"{size[_EDGES[0]]:,} to {size[_EDGES[1]]:,} pixels " + "of all frames" * volume
    lacking = "" if "size" in declared or size != default else _lacking(bounds.strip())
    return Video(pixels, placeholder(bare, "video"), runs, words, lacking)


def _within(
    size: Size, factor: int, bounds: tuple[int, int], frames: int, counted: int
) -> tuple[int, int]:
    """Return height and width as multiples of ``factor`` near the frame's own. If the pixels of
    ``counted`` frames are out of bounds, both sides are scaled by the same factor.
    """
    if frames > 1 and min(size) < factor:
        size = tuple(int(side * (factor / min(size))) for side in size)  # type: ignore[assignment]
    rounded = [round(side / factor) * factor for side in size]
    smallest, largest = bounds
    pixels, total = counted * math.prod(rounded), frames * math.prod(size)
    if pixels > largest:
        shrunk = math.sqrt(total / largest)
        rounded = [max(factor, math.floor(side / shrunk / factor) * factor) for side in size]
    elif pixels < smallest:
        grown = math.sqrt(smallest / total)
        rounded = [math.ceil(side * grown / factor) * factor for side in size]
    return rounded[0], rounded[1]


def _times(request: Request, pair: int) -> list[float]:
    """Return the time in the middle of each pair of evenly spaced frames, in seconds."""
    step = request.seconds / max(1, request.frames - 1)
    last = request.frames - 1
    firsts = range(0, request.frames, pair)
    return [step * (first + min(first + pair - 1, last)) / 2 for first in firsts]


def _stamp(seconds: float) -> int:
    """Count the tokens of "<12.5 seconds>", one per digit, and of the marks around two frames."""
    return len(str(int(round(seconds, 1)))) + 7


def _pooled(bare: Bare, request: Request) -> Video:
    """Return a video as one run of pooled frames (LLaVA-OneVision)."""
    sides, lacking = _sides(bare)
    shape = (request.batch, request.frames, 3, *sides)
    pixels = torch.empty(shape, dtype=bare.dtype, device="meta")
    return Video({"pixel_values_videos": pixels}, placeholder(bare, "video"), assumed=lacking)


def _tiles(bare: Bare, request: Request) -> Video:
    """Return a video as images of one tile per frame (InternVL), each behind "Frame1: ", with a
    line break between two.
    """
    sides, lacking = _sides(bare)
    shape = (request.batch * request.frames, 3, *sides)
    pixels = torch.empty(shape, dtype=bare.dtype, device="meta")
    words = sum(len(str(number + 1)) + 6 for number in range(request.frames)) - 1
    token = placeholder(bare, "image")
    return Video({"pixel_values": pixels}, token, request.frames, words, lacking)


def _sides(bare: Bare) -> tuple[tuple[int, int], str]:
    """Return the height and width of every frame, and a note if they are the tower's default."""
    declared, default = settings(bare.folder), bare.config.vision_config.image_size
    default = default if isinstance(default, (list, tuple)) else (default, default)
    size = declared.get("size") or dict(zip(_SIDES, default, strict=True))
    if not all(side in size for side in _SIDES) or declared.get("do_center_crop"):
        raise Unknown(f"the video processor makes frames of a size that is not known here: {size}")
    high, wide = size["height"], size["width"]
    return (high, wide), "" if "size" in declared else _lacking(f"frames of {high}x{wide}")


def placeholder(bare: Bare, kind: str) -> int:
    """Return the token id of the placeholder of kind "image" or "video".

    Raises:
        Unknown: the configuration has none.
    """
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        if isinstance(token := getattr(bare.config, name, None), int):
            return token
    raise Unknown(f"{bare.config.model_type} names no placeholder of {kind}s")


def _lacking(assumption: str) -> str:
    return f"no {FILES[1]} says how large a video's frames become: {assumption}, as by default"


_KINDS: dict[str, Callable[[Bare, Request], Video]] = {
    "qwen2_vl": partial(_patches, volume=False),
    "qwen2_5_vl": partial(_patches, volume=False),
    "qwen3_vl": partial(_patches, volume=True),
    "qwen3_vl_moe": partial(_patches, volume=True),
    "llava_onevision": _pooled,
    "internvl": _tiles,
}


WORD = 1
"""Id of a text token: any id that is no placeholder."""
_TYPES = ("mm_token_type_ids", "token_type_ids")
_TYPES_OF_ANSWERS = ("paligemma",)
"""Models whose token types distinguish answer and prompt, not images and text."""


def takes(function: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of ``names`` that are parameters of a function."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in names.items() if name in known}


def pixels(bare: Bare, request: Request) -> Inputs:
    """Return the image processor's outputs for all images of a request: floating-point tensors on
    "meta", the rest (grids, sizes) on the CPU. Empty without images.

    Raises:
        InvalidInput: the model reads text only.
        Unknown: no image processor, or one that does not take blank images.
    """
    if not request.image_count or request.size is None:
        return {}
    if not bare.sees:
        raise InvalidInput(
            f"{bare.name} reads text only, and {request.image_count} image(s) or frame(s) are "
            "requested. Leave them out, or name a vision-language model."
        )
    request.check_between(request.image_count)
    if isinstance(bare.processor, str):
        raise Unknown(bare.processor)
    single, double = (_of_blank(bare.processor, request.size, count) for count in (1, 2))
    forward = inspect.signature(bare.model.forward).parameters
    return {
        name: _many(value, double[name], request, bare.dtype)
        for name, value in single.items()
        if name in forward and isinstance(value, Tensor)
    }


def takes_videos(config: PreTrainedConfig) -> bool:
    """Return True if the processor of such a model reads videos; else frames are read as images."""
    names = ("video_token_id", "video_token_index")
    named = any(isinstance(getattr(config, name, None), int) for name in names)
    mapping: Any = video_processing_auto
    return named or config.model_type in mapping.VIDEO_PROCESSOR_MAPPING_NAMES


def _of_blank(processor: Any, size: Size, count: int) -> Mapping[str, Any]:
    images = [blank(size, processor)] * count
    try:
        with undrawn():
            outputs: Mapping[str, Any] = processor(images, return_tensors="pt")
    except (TypeError, ValueError) as error:
        kind = type(processor).__name__
        raise Unknown(f"{kind} does not take an image of {size[0]}x{size[1]}: {error}") from error
    return outputs


def _many(single: Tensor, double: Tensor, request: Request, dtype: torch.dtype) -> Tensor:
    """Extrapolate an output from one and two images to all images: it grows along one axis."""
    pairs = zip(single.shape, double.shape, strict=True)
    axis = next((axis for axis, (a, b) in enumerate(pairs) if a != b), 0)
    each = double.shape[axis] - single.shape[axis]
    shape, rows = list(single.shape), request.batch
    shape[axis] += each * (request.image_count * (rows if axis == 0 else 1) - 1)
    if axis:  # images of a row are stacked along another axis than the rows
        shape[0] *= rows
    if single.is_floating_point():
        return torch.empty(shape, dtype=dtype, device="meta")
    repeats = [size // length for size, length in zip(shape, single.shape, strict=True)]
    return single.repeat(repeats)


def prompt(bare: Bare, request: Request, visual: int, clip: Video | None = None) -> Inputs:
    """Return token ids [b, n], their mask and types, with ``visual`` tokens for each image, or for
    each run of the video, between tokens of text.

    Raises:
        InvalidInput: more tokens than the limit.
    """
    words, runs = request.text, request.image_count
    if clip is not None:
        words, runs = words + clip.words, clip.runs
    check_tokens(request.batch, words + visual * runs)
    row: list[int] = []
    if runs:
        token = placeholder(bare, "image") if clip is None else clip.token
        row = ([WORD] * (words // (runs + 1)) + [token] * visual) * runs
    row += [WORD] * (words - row.count(WORD))
    input_ids = torch.tensor([row], dtype=torch.long, device="cpu").repeat(request.batch, 1)
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    return inputs | _types(bare, input_ids)


def _types(bare: Bare, ids: Tensor) -> Inputs:
    """Return the token types that the model takes: 1 at images, 2 at videos, 0 at text."""
    visual = torch.isin(ids, ids.new_tensor(visual_token_ids(bare.config))).long()
    visual[ids == getattr(bare.config, "video_token_id", -1)] = 2
    if bare.config.model_type in _TYPES_OF_ANSWERS:
        visual = torch.zeros_like(visual)
    named = takes(bare.model.forward, dict.fromkeys(_TYPES, visual))
    return named if bare.sees else {}
