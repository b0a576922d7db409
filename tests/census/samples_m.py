"""Images of families m to p, and what their prompts need besides."""

from __future__ import annotations

import torch
from torch import Generator

from . import media
from .media import CHANNELS, Picture
from .sizes import PATCH, VOCAB
from .specimen import Inputs

_MINICPM_GRIDS = ((4, 8), (8, 4), (8, 8))
"""Grids whose sides the 4 by 4 patches of a token divide."""


def long_strip(index: int, generator: Generator) -> Picture:
    """MiniCPM-V: the patches of all images side by side in one strip."""
    height, width = _MINICPM_GRIDS[index % 3]
    pixels = torch.randn(height * width * PATCH, CHANNELS, PATCH, generator=generator)
    return {"pixel_values": pixels, "target_sizes": torch.tensor((height, width))}


def strip_of_frames(_index: int, generator: Generator) -> Picture:
    """MiniCPM-V: one frame of a video; 4.7 asks for as many sizes as frames, but repeats them."""
    return {
        "pixel_values_videos": torch.randn(1, CHANNELS, PATCH, 32 * PATCH, generator=generator),
        "target_sizes_videos": torch.tensor((4, 8)),
    }


def turned(inputs: Inputs) -> Inputs:
    """Turns the strip so that it is as high as a patch."""
    if "pixel_values" not in inputs or inputs["pixel_values"].dim() == 4:
        return inputs
    return inputs | {"pixel_values": inputs["pixel_values"].permute(1, 2, 0)[None]}


def pooled(_index: int, generator: Generator) -> Picture:
    """Molmo 2: one crop, and which of its patches make each token."""
    corner = torch.arange(0, 36, 2).reshape(6, 3)[::2].flatten()
    return {
        "pixel_values": torch.randn(1, 36, CHANNELS * PATCH * PATCH, generator=generator),
        "image_token_pooling": corner[:, None] + torch.tensor((0, 1, 6, 7)),
        "image_grids": torch.tensor((3, 3, 0, 0)),
        "image_num_crops": torch.tensor(1),
    }


def pooled_frames(_index: int, generator: Generator) -> Picture:
    """Molmo 2: two frames of nine tokens."""
    pooling = pooled(0, generator)["image_token_pooling"]
    return {
        "pixel_values_videos": torch.randn(2, 36, CHANNELS * PATCH * PATCH, generator=generator),
        "video_token_pooling": torch.cat([pooling, pooling + 36]),
        "video_grids": torch.tensor((2, 3, 3)),
    }


def counted(inputs: Inputs) -> Inputs:
    """Patches are counted over the crops of all images."""
    if "image_token_pooling" not in inputs:
        return inputs
    pooling = inputs["image_token_pooling"] % 36
    crop = torch.arange(pooling.shape[0])[:, None] // 9
    return inputs | {"image_token_pooling": pooling + 36 * crop}


def aspects(index: int, generator: Generator) -> Picture:
    """Mllama: tiles of an image, padded to two."""
    choice = index % 3
    count = (1, 2, 2)[choice]
    pixels = torch.zeros(2, CHANNELS, 8, 8)
    pixels[:count] = torch.randn(count, CHANNELS, 8, 8, generator=generator)
    return {
        "pixel_values": pixels,
        "aspect_ratio_ids": torch.tensor(choice + 1),  # 0 stands for no image
        "aspect_ratio_mask": (torch.arange(2) < count).long(),
    }


def crossed(inputs: Inputs) -> Inputs:
    """Each image is seen from its placeholder up to the next one."""
    if "aspect_ratio_mask" not in inputs:
        return inputs
    ids, present = inputs["input_ids"], inputs["aspect_ratio_mask"]
    seen = (ids == VOCAB).cumsum(-1)
    number = torch.arange(1, present.shape[1] + 1)
    mask = (seen[..., None] == number)[..., None].long() * present[:, None]
    return inputs | {"cross_attention_mask": mask}


def hw_patches(index: int, generator: Generator) -> Picture:
    """RADIO: flattened patches with their grid."""
    height, width = media.GRIDS[index % 3]
    length = CHANNELS * PATCH * PATCH
    return {
        "pixel_values": torch.randn(height * width, length, generator=generator),
        "image_grid_hw": torch.tensor((height, width)),
    }
