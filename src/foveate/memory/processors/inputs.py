"""What a processor makes of images of a size, found from blank ones; and a prompt around them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.auto import video_processing_auto

from foveate.errors import InvalidInput
from foveate.hf.model.modality import visual_token_ids
from foveate.memory.model import Bare
from foveate.memory.processors.blank import blank, undrawn
from foveate.memory.processors.videos import Inputs, Video, placeholder
from foveate.memory.request import Request, Size, Unknown, check_tokens

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
