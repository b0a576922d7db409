"""Visual tokens of a prompt, and the first token of each frame or image among them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.image_processing_utils import select_best_resolution

from foveate.cache.tokens import run_starts
from foveate.errors import InvalidInput

_NAMES = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")


_ONE_EACH = ("llava", "vipllava", "paligemma", "shieldgemma2")
"""Model types whose ``pixel_values`` have one entry per image; in others an entry may be a tile of
one.
"""


def visual_token_ids(config: PreTrainedConfig, kind: str = "") -> list[int]:
    """Return the ids of the placeholders that image and video features replace, or of one kind of
    them ("image", "video"); none in a text model.
    """
    ids = [getattr(config, name, None) for name in _NAMES if name.startswith(kind)]
    return sorted({i for i in ids if isinstance(i, int)})


def visual_tokens(
    config: PreTrainedConfig, input_ids: Int[Tensor, "b t"] | None
) -> Bool[Tensor, "b t"] | None:
    """Mark the placeholders of images and videos; None without ids."""
    if input_ids is None:
        return None
    ids = input_ids.new_tensor(visual_token_ids(config))
    return torch.isin(input_ids, ids)


def starts_in_runs(
    config: PreTrainedConfig, input_ids: Int[Tensor, "b t"], inputs: Mapping[str, Any]
) -> Bool[Tensor, "b t"] | None:
    """Mark the first token of each frame, and of each image that touches another; None if no run of
    visual tokens has more than one of either, or that is unknown.
    """
    starts = [find(config, input_ids, inputs) for find in (frame_starts, image_starts)]
    known = [mask for mask in starts if mask is not None]
    return torch.stack(known).any(0) if known else None


def frame_starts(
    config: PreTrainedConfig, input_ids: Int[Tensor, "b t"], inputs: Mapping[str, Any]
) -> Bool[Tensor, "b t"] | None:
    """Mark the first token of each frame of the videos. None unless the frames of a video follow
    each other without text between them and the inputs have their number: ``video_grid_thw``
    (Qwen-VL) or the shape of ``pixel_values_videos``, [videos, frames, ...].
    """
    sizes = _frame_sizes(inputs)
    if not sizes:
        return None
    video = torch.isin(input_ids, input_ids.new_tensor(visual_token_ids(config, "video")))
    starts = run_starts(video)
    if int(starts.sum()) != len(sizes):
        return None  # text between the frames, as in Qwen3-VL: each is a run of its own
    runs = (starts.flatten().cumsum(0) - 1).view_as(starts)
    for number, frames in enumerate(sizes):
        rows, columns = torch.nonzero(video & (runs == number), as_tuple=True)
        per_frame = len(rows) // len(frames)  # LLaVA-OneVision ends a video with a newline token
        lengths = frames if frames[0] else [per_frame] * len(frames)
        if sum(lengths) in (len(rows), len(rows) - 1):
            first = rows.new_tensor([0, *lengths[:-1]]).cumsum(0)
            starts[rows[first], columns[first]] = True
    return starts


def image_starts(
    config: PreTrainedConfig, input_ids: Int[Tensor, "b t"], inputs: Mapping[str, Any]
) -> Bool[Tensor, "b t"] | None:
    """Mark the first token of each image. None unless images touch and the inputs have the number
    of tokens of each.
    """
    if all(inputs.get(name) is None for name in _IMAGES):
        return None  # as in every decoding step, which must not sync with the device
    image = torch.isin(input_ids, input_ids.new_tensor(visual_token_ids(config, "image")))
    starts = run_starts(image)
    tokens = int(image.sum())
    sizes = _image_tokens(config, inputs, tokens)
    if not tokens or len(sizes) <= int(starts.sum()):  # no tokens: the model rejects such pixels
        return None
    first = input_ids.new_tensor([0, *sizes[:-1]]).cumsum(0)
    flat = starts.flatten()
    flat[image.flatten().nonzero()[first, 0]] = True
    return flat.view_as(starts)


_IMAGES = ("image_grid_thw", "image_sizes", "pixel_values")
"""Inputs from which the number of tokens of each image follows."""


def _image_tokens(config: Any, inputs: Mapping[str, Any], tokens: int) -> list[int]:
    """Count the tokens of each image; empty unless they sum to ``tokens``."""
    grid, shapes, pixels = map(inputs.get, _IMAGES)
    sizes: list[int] = []
    if grid is not None:
        merge = getattr(getattr(config, "vision_config", None), "spatial_merge_size", 1)
        sizes = (grid.prod(-1) // merge**2).tolist()
    elif shapes is not None and getattr(config, "image_grid_pinpoints", None):
        shapes = torch.as_tensor(shapes, dtype=torch.long, device="cpu").tolist()
        sizes = [_tiled(config, *shape) for shape in shapes]
    elif shapes is None and pixels is not None and config.model_type in _ONE_EACH:
        sizes = [tokens // len(pixels)] * len(pixels)
    return sizes if sum(sizes) == tokens else []


def _tiled(config: Any, height: int, width: int) -> int:
    """Count the tokens of an image of this many pixels in LLaVA-NeXT and LLaVA-OneVision: overview
    and tiles, without padding, with a newline token for each line.
    """
    vision = config.vision_config
    side = vision.image_size // vision.patch_size
    best = select_best_resolution((height, width), config.image_grid_pinpoints)
    rows, columns = (length // vision.image_size * side for length in best)
    if width / height > columns / rows:
        rows -= (rows - int(round(height * columns / width, 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * rows / height, 7))) // 2 * 2
    limit = re.fullmatch(r"anyres_max_(\d+)", getattr(config, "vision_aspect_ratio", "") or "")
    if limit and (ratio := math.sqrt(rows * columns / (int(limit[1]) * side**2))) > 1.1:
        rows, columns = int(rows // ratio), int(columns // ratio)
    return int(side**2 + rows * (columns + 1))


def _frame_sizes(inputs: Mapping[str, Any]) -> list[list[int]]:
    """Return, for each video, the token counts of its frames; zeros if all are equal."""
    grid, pixels = inputs.get("video_grid_thw"), inputs.get("pixel_values_videos")
    kept = inputs.get("video_compression_mask")
    if grid is None:
        if pixels is None or pixels.ndim != 5:
            return []
        return [[0] * pixels.shape[1]] * pixels.shape[0]
    if kept is None:
        return [[0] * int(t) for t in grid[:, 0]]
    merged = inputs["video_merge_sizes"].tolist()  # VideoLLaMA 3 drops static patches
    per_frame = [h * w // m**2 for (_, h, w), m in zip(grid.tolist(), merged, strict=True)]
    counts = [
        size for size, t in zip(per_frame, grid[:, 0].tolist(), strict=True) for _ in range(t)
    ]
    kept_counts = iter([int(part.sum()) for part in kept.flatten().split(counts)])
    return [[next(kept_counts) for _ in range(t)] for t in grid[:, 0].tolist()]


def given_visual_tokens(
    vision: Tensor, rows: int, prompt_end: int, columns: slice
) -> Bool[Tensor, "b t"]:
    """Return the caller's ``vision`` at these columns, with one row for each beam.

    Raises:
        InvalidInput: ``vision`` does not have the prompt's shape.
    """
    if vision.ndim != 2 or rows % vision.shape[0] or vision.shape[1] != prompt_end:
        raise InvalidInput(
            f"vision has shape {tuple(vision.shape)}, but the prompt has {rows} rows of "
            f"{prompt_end} tokens."
        )
    return vision.bool().repeat_interleave(rows // vision.shape[0], dim=0)[:, columns]
