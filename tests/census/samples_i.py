"""Images of families i to l, and what their prompts need besides."""

from __future__ import annotations

import torch
from torch import Generator

from . import media
from .media import CHANNELS, Picture
from .sizes import AFTER, BEFORE, IMAGE, PATCH, TEXT_FROM, VOCAB
from .specimen import Inputs


def seen_images(inputs: Inputs) -> Inputs:
    """Each token sees the last image in front of it (Idefics)."""
    seen = (inputs["input_ids"] == IMAGE).cumsum(-1)
    number = torch.arange(1, inputs["pixel_values"].shape[1] + 1)
    return inputs | {"image_attention_mask": (seen[..., None] == number).long()}


def where_images_are(inputs: Inputs) -> Inputs:
    """Kosmos is told the places of the image features."""
    if "pixel_values" not in inputs and "flattened_patches" not in inputs:
        return inputs
    return inputs | {"image_embeds_position_mask": inputs["input_ids"] == IMAGE}


def asked(key: str, shape: tuple[int, ...]) -> media.Sample:
    """An image with a question to its query transformer (InstructBLIP)."""

    def sample(_index: int, generator: Generator) -> Picture:
        question = torch.randint(TEXT_FROM, VOCAB, (5,), generator=generator)
        return {
            key: torch.randn(*shape, generator=generator),
            "qformer_input_ids": question,
            "qformer_attention_mask": torch.ones_like(question),
        }

    return sample


def cells(index: int, generator: Generator) -> Picture:
    """Inkling 2: squares of merged patches with a grid of them."""
    height, width = ((2, 3), (2, 2))[index % 2]
    pixels = torch.randn(height * width, 2 * PATCH, 2 * PATCH, CHANNELS, generator=generator)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor((1, height, width))}


def cubes(_index: int, generator: Generator) -> Picture:
    """Inkling: patches of two frames, one token each."""
    return {"pixel_values": torch.randn(6, 2, PATCH, PATCH, CHANNELS, generator=generator)}


def flattened(_index: int, generator: Generator) -> Picture:
    """Kosmos-2.5: patches behind their row and column, padded with zeros."""
    rows, columns = torch.meshgrid(torch.arange(1, 4), torch.arange(1, 4), indexing="ij")
    places = torch.stack([rows.flatten(), columns.flatten()], dim=-1).float()
    patches = torch.randn(9, CHANNELS * PATCH * PATCH, generator=generator)
    whole = torch.cat([places, patches], dim=-1)
    return {"flattened_patches": torch.cat([whole, torch.zeros(2, whole.shape[-1])])}


def ragged(index: int, generator: Generator) -> Picture:
    """SigLIP 2: patches padded to the largest image, with their grid (LFM2-VL)."""
    height, width = media.GRIDS[index % 3]
    pixels = torch.zeros(36, CHANNELS * PATCH * PATCH)
    count = height * width
    pixels[:count] = torch.randn(count, pixels.shape[-1], generator=generator)
    return {
        "pixel_values": pixels,
        "spatial_shapes": torch.tensor((height, width)),
        "pixel_attention_mask": (torch.arange(36) < count).long(),
    }


def merged(picture: Picture) -> list[int]:
    """Placeholders of images merged by 2, from whichever argument has their size."""
    size = picture["spatial_shapes"] // 2 if "spatial_shapes" in picture else None
    if size is None:
        size = picture["image_sizes"] // (2 * PATCH)
    return [BEFORE, *[IMAGE] * int(size.prod()), AFTER]


def kimi_clip(_index: int, generator: Generator) -> Picture:
    """Two frames whose features are averaged over time (Kimi)."""
    pixels = torch.randn(32, CHANNELS, PATCH, PATCH, generator=generator)
    return {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor((2, 4, 4))}
