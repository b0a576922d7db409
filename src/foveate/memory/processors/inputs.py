"""What processors make of images and videos of a size, and a prompt around them.

Images are found from blank ones. Of videos, how many patches or tiles the processors of Qwen-VL,
LLaVA-OneVision and InternVL make, and what they write between them, is worked out from their
settings, as these processors themselves need torchvision and all the frames.
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
"""Where transformers looks for a video processor's settings: of the first one, a part of it."""
_RATIO = 200  # of a side to the other, which Qwen-VL's processors refuse
_EDGES = ("shortest_edge", "longest_edge")
_SIDES = ("height", "width")


class Video(NamedTuple):
    """A video as a model takes it. A row's visual tokens stand in so many ``runs`` of the
    placeholder ``token``, alike, with ``words`` tokens of text around them that the processor
    writes. ``assumed`` names settings that no file tells.
    """

    pixels: Inputs
    token: int
    runs: int = 1
    words: int = 0
    assumed: str = ""


def video(bare: Bare, request: Request) -> Video:
    """A request's video: pixels of floating point on "meta", the grid of patches for real.

    Raises:
        Unknown: a model of another type, or settings that are not counted here.
    """
    make = _KINDS.get(bare.config.model_type)
    if make is None:
        raise Unknown(
            f"how {bare.config.model_type} makes tokens of a video is not known here (it is of "
            f"{', '.join(sorted(_KINDS))}); images=N asks about as many frames read as images"
        )
    if request.images:
        raise Unknown("images beside a video are not counted; ask about each by itself")
    return make(bare, request)


def settings(folder: Path | None) -> Settings:
    """The settings of the video processor in a model's folder; none where no file has them."""
    for name in FILES if folder is not None else ():
        path = Path(folder or "") / name
        held = json.loads(path.read_text()) if path.is_file() else {}
        if name == FILES[0]:
            held = held.get("video_processor") or {}
        if held:
            return {key: value for key, value in held.items() if value is not None}
    return {}


def _patches(bare: Bare, request: Request, volume: bool) -> Video:
    """Patches of two frames each. Bounds on pixels are those of a frame, or of the whole volume."""
    tower, side = bare.config.vision_config, 32 if volume else 28
    usual = {"shortest_edge": 128 * side**2, "longest_edge": 768 * side**2}
    said = settings(bare.folder)
    made = {
        "patch_size": tower.patch_size,
        "temporal_patch_size": tower.temporal_patch_size,
        "merge_size": tower.spatial_merge_size,
        **said,
    }
    size = dict(made.get("size") or usual)
    if not volume:  # older files have them beside the size
        names = zip(_EDGES, ("min_pixels", "max_pixels"), strict=True)
        size.update({edge: said[name] for edge, name in names if name in said})
    if not all(edge in size for edge in _EDGES) or made.get("cap_pixels_per_frame"):
        raise Unknown(f"the video processor bounds pixels otherwise than is known here: {size}")
    pair, patch = made["temporal_patch_size"], made["patch_size"]
    if volume and request.frames < pair:
        raise Unknown(f"its video processor takes {pair} frames or more")
    frames = (request.frames, round(request.frames / pair) * pair) if volume else (1, 1)
    width, height = request.size or (0, 0)
    if max(width, height) > _RATIO * min(width, height):
        raise Unknown(f"its video processor takes no frames of {width}x{height}")
    factor = patch * made["merge_size"]
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
    lacking = "" if "size" in said or size != usual else _lacking(bounds.strip())
    return Video(pixels, placeholder(bare, "video"), runs, words, lacking)


def _within(
    size: Size, factor: int, bounds: tuple[int, int], frames: int, counted: int
) -> tuple[int, int]:
    """Height and width, multiples of ``factor`` near the frame's own, so that the pixels of all
    ``counted`` frames are within bounds; where they are not, both sides shrink or grow alike.
    """
    if frames > 1 and min(size) < factor:
        size = tuple(int(side * (factor / min(size))) for side in size)  # type: ignore[assignment]
    near = [round(side / factor) * factor for side in size]
    least, most = bounds
    pixels, whole = counted * math.prod(near), frames * math.prod(size)
    if pixels > most:
        shrunk = math.sqrt(whole / most)
        near = [max(factor, math.floor(side / shrunk / factor) * factor) for side in size]
    elif pixels < least:
        grown = math.sqrt(least / whole)
        near = [math.ceil(side * grown / factor) * factor for side in size]
    return near[0], near[1]


def _times(request: Request, pair: int) -> list[float]:
    """Seconds in the middle of each pair of frames, which are at even distances."""
    step = request.seconds / max(1, request.frames - 1)
    last = request.frames - 1
    firsts = range(0, request.frames, pair)
    return [step * (first + min(first + pair - 1, last)) / 2 for first in firsts]


def _stamp(seconds: float) -> int:
    """Tokens of "<12.5 seconds>" and of the marks around a pair of frames: a digit is one."""
    return len(str(int(round(seconds, 1)))) + 7


def _pooled(bare: Bare, request: Request) -> Video:
    """All frames of a row beside each other."""
    sides, lacking = _sides(bare)
    shape = (request.batch, request.frames, 3, *sides)
    pixels = torch.empty(shape, dtype=bare.dtype, device="meta")
    return Video({"pixel_values_videos": pixels}, placeholder(bare, "video"), assumed=lacking)


def _tiles(bare: Bare, request: Request) -> Video:
    """A frame is an image of one tile, with "Frame1: " before it and a line's end between two."""
    sides, lacking = _sides(bare)
    shape = (request.batch * request.frames, 3, *sides)
    pixels = torch.empty(shape, dtype=bare.dtype, device="meta")
    words = sum(len(str(number + 1)) + 6 for number in range(request.frames)) - 1
    token = placeholder(bare, "image")
    return Video({"pixel_values": pixels}, token, request.frames, words, lacking)


def _sides(bare: Bare) -> tuple[tuple[int, int], str]:
    """Height and width of every frame; where no file has them, those that the tower is made for."""
    said, usual = settings(bare.folder), bare.config.vision_config.image_size
    usual = usual if isinstance(usual, (list, tuple)) else (usual, usual)
    size = said.get("size") or dict(zip(_SIDES, usual, strict=True))
    if not all(side in size for side in _SIDES) or said.get("do_center_crop"):
        raise Unknown(f"the video processor makes frames of a size that is not known here: {size}")
    high, wide = size["height"], size["width"]
    return (high, wide), "" if "size" in said else _lacking(f"frames of {high}x{wide}")


def placeholder(bare: Bare, kind: str) -> int:
    """Return the placeholder of kind "image" or "video".

    Raises:
        Unknown: the configuration names none.
    """
    for name in (f"{kind}_token_id", f"{kind}_token_index"):
        if isinstance(token := getattr(bare.config, name, None), int):
            return token
    raise Unknown(f"{bare.config.model_type} names no placeholder of {kind}s")


def _lacking(taken: str) -> str:
    return f"no {FILES[1]} says how large a video's frames become: {taken}, as by default"


_KINDS: dict[str, Callable[[Bare, Request], Video]] = {
    "qwen2_vl": partial(_patches, volume=False),
    "qwen2_5_vl": partial(_patches, volume=False),
    "qwen3_vl": partial(_patches, volume=True),
    "qwen3_vl_moe": partial(_patches, volume=True),
    "llava_onevision": _pooled,
    "internvl": _tiles,
}


WORD = 1
"""A token of text: any that is no placeholder."""
_TYPES = ("mm_token_type_ids", "token_type_ids")
_TYPES_OF_ANSWERS = ("paligemma",)
"""Models whose types of tokens tell the answer from the prompt, and not images from text."""


def takes(function: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a function names among its parameters."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in names.items() if name in known}


def pixels(bare: Bare, request: Request) -> Inputs:
    """What the image processor makes of all images of a request: of floating point on "meta", the
    rest (grids, sizes) for real; none without images.

    Raises:
        InvalidInput: the model reads text only.
        Unknown: there is no image processor, or it does not take blank images.
    """
    if not request.shown or request.size is None:
        return {}
    if not bare.sees:
        raise InvalidInput(
            f"{bare.name} reads text only, and {request.shown} image(s) or frame(s) are asked for. "
            "Leave them out, or name a vision-language model."
        )
    request.check_between(request.shown)
    if isinstance(bare.processor, str):
        raise Unknown(bare.processor)
    one, two = (_of_blank(bare.processor, request.size, count) for count in (1, 2))
    forward = inspect.signature(bare.model.forward).parameters
    return {
        name: _many(value, two[name], request, bare.dtype)
        for name, value in one.items()
        if name in forward and isinstance(value, Tensor)
    }


def takes_videos(config: PreTrainedConfig) -> bool:
    """Whether the processor of these models reads videos; for others their frames are images."""
    names = ("video_token_id", "video_token_index")
    named = any(isinstance(getattr(config, name, None), int) for name in names)
    mapping: Any = video_processing_auto
    return named or config.model_type in mapping.VIDEO_PROCESSOR_MAPPING_NAMES


def _of_blank(processor: Any, size: Size, count: int) -> Mapping[str, Any]:
    images = [blank(size, processor)] * count
    try:
        with undrawn():
            made: Mapping[str, Any] = processor(images, return_tensors="pt")
    except (TypeError, ValueError) as error:
        kind = type(processor).__name__
        raise Unknown(f"{kind} does not take an image of {size[0]}x{size[1]}: {error}") from error
    return made


def _many(one: Tensor, two: Tensor, request: Request, dtype: torch.dtype) -> Tensor:
    """What it is of all images, by what one and two of them are: it grows along one axis."""
    pairs = zip(one.shape, two.shape, strict=True)
    axis = next((axis for axis, (a, b) in enumerate(pairs) if a != b), 0)
    each = two.shape[axis] - one.shape[axis]
    shape, rows = list(one.shape), request.batch
    shape[axis] += each * (request.shown * (rows if axis == 0 else 1) - 1)
    if axis:  # images of a row beside each other
        shape[0] *= rows
    if one.is_floating_point():
        return torch.empty(shape, dtype=dtype, device="meta")
    repeats = [whole // part for whole, part in zip(shape, one.shape, strict=True)]
    return one.repeat(repeats)


def prompt(bare: Bare, request: Request, visual: int, clip: Video | None = None) -> Inputs:
    """Ids [b, n], their mask and types: the ``visual`` tokens of each image, or of each run of the
    video's, between those of text.

    Raises:
        InvalidInput: more tokens than are counted.
    """
    words, runs = request.text, request.shown
    if clip is not None:
        words, runs = words + clip.words, clip.runs
    check_tokens(request.batch, words + visual * runs)
    row: list[int] = []
    if runs:
        token = placeholder(bare, "image") if clip is None else clip.token
        row = ([WORD] * (words // (runs + 1)) + [token] * visual) * runs
    row += [WORD] * (words - row.count(WORD))
    input_ids = torch.tensor([row], dtype=torch.long, device="cpu").repeat(request.batch, 1)
    made = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    return made | _types(bare, input_ids)


def _types(bare: Bare, ids: Tensor) -> Inputs:
    """1 at images, 2 at videos."""
    visual = torch.isin(ids, ids.new_tensor(visual_token_ids(bare.config))).long()
    visual[ids == getattr(bare.config, "video_token_id", -1)] = 2
    if bare.config.model_type in _TYPES_OF_ANSWERS:
        visual = torch.zeros_like(visual)
    named = takes(bare.model.forward, dict.fromkeys(_TYPES, visual))
    return named if bare.sees else {}
