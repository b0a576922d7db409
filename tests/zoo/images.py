"""Random images, in the form each family's image processor would give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor
from transformers.models.llava_next.modeling_llava_next import (
    get_anyres_image_grid_shape,
    image_size_to_num_patches,
    unpad_image,
)

from .family import Picture

CHANNELS = 3


def square(size: int) -> Callable[[int, Generator], Picture]:
    """An image of ``size`` by ``size`` pixels."""

    def sample(_index: int, generator: Generator) -> Picture:
        return {"pixel_values": torch.randn(CHANNELS, size, size, generator=generator)}

    return sample


def masked_square(size: int) -> Callable[[int, Generator], Picture]:
    """A square with a mask of its real pixels (Idefics3, SmolVLM)."""

    def sample(_index: int, generator: Generator) -> Picture:
        pixels = torch.randn(CHANNELS, size, size, generator=generator)
        mask = torch.ones(size, size, dtype=torch.long)
        return {"pixel_values": pixels, "pixel_attention_mask": mask}

    return sample


def constant(count: int) -> Callable[[Picture], int]:
    """The token count of a family where all images have the same."""
    return lambda _picture: count


def tiles(
    size: int, pinpoints: list[list[int]], sizes: Sequence[tuple[int, int]]
) -> Callable[[int, Generator], Picture]:
    """An overview and the tiles of an image of one of ``sizes`` in turn (LLaVA-NeXT, OneVision).

    Images with fewer tiles than the largest are padded with empty ones, as processors do; the
    model drops them.
    """
    most = max(image_size_to_num_patches(each, pinpoints, size) for each in sizes)

    def sample(index: int, generator: Generator) -> Picture:
        shape = sizes[index % len(sizes)]
        count = image_size_to_num_patches(shape, pinpoints, size)
        pixels = torch.zeros(most, CHANNELS, size, size)
        pixels[:count] = torch.randn(count, CHANNELS, size, size, generator=generator)
        return {"pixel_values": pixels, "image_sizes": torch.tensor(shape)}

    return sample


def tile_tokens(size: int, patch: int, pinpoints: list[list[int]]) -> Callable[[Picture], int]:
    """Counts the features the model packs: overview, unpadded tiles, one newline per line."""

    def tokens(picture: Picture) -> int:
        side = size // patch
        shape = picture["image_sizes"].tolist()
        rows, columns = get_anyres_image_grid_shape(shape, pinpoints, size)
        height, width = unpad_image(torch.zeros(1, rows * side, columns * side), shape).shape[1:]
        return int(side * side + height * (width + 1))

    return tokens


def patches(
    patch: int, grids: Sequence[tuple[int, int]], temporal: int = 2
) -> Callable[[int, Generator], Picture]:
    """Flattened patches of an image with one of ``grids`` in turn (the Qwen-VL families)."""

    def sample(index: int, generator: Generator) -> Picture:
        height, width = grids[index % len(grids)]
        length = CHANNELS * temporal * patch * patch
        pixels = torch.randn(height * width, length, generator=generator)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor((1, height, width))}

    return sample


def merged_tokens(merge: int = 2) -> Callable[[Picture], int]:
    """Counts the tokens of a Qwen-VL image: ``merge`` by ``merge`` patches make one."""
    return lambda picture: int(picture["image_grid_thw"].prod()) // merge**2


def aspect_tiles(
    size: int, most: int, ratios: Sequence[tuple[int, int]]
) -> Callable[[int, Generator], Picture]:
    """Tiles of an image with one of ``ratios`` in turn, padded to ``most`` (Mllama)."""

    def sample(index: int, generator: Generator) -> Picture:
        choice = index % len(ratios)
        count = ratios[choice][0] * ratios[choice][1]
        pixels = torch.zeros(most, CHANNELS, size, size)
        pixels[:count] = torch.randn(count, CHANNELS, size, size, generator=generator)
        return {
            "pixel_values": pixels,
            "aspect_ratio_ids": torch.tensor(choice + 1),  # 0 stands for no image
            "aspect_ratio_mask": (torch.arange(most) < count).long(),
        }

    return sample


def collate(pictures: Sequence[Sequence[Picture]], layout: str) -> dict[str, Tensor]:
    """Puts the images of each row into one batch, in the given layout."""
    flat = [picture for row in pictures for picture in row]
    if not flat:
        return {}
    if layout == "rows":
        most = max(len(row) for row in pictures)
        empty = {key: torch.zeros_like(value) for key, value in flat[0].items()}
        padded = [[*row, *[empty] * (most - len(row))] for row in pictures]
        return {key: torch.stack([_stack(row, key) for row in padded]) for key in flat[0]}
    batch = {key: _stack(flat, key) for key in flat[0] if key != "pixel_values"}
    if layout == "patches":
        return {"pixel_values": torch.cat([picture["pixel_values"] for picture in flat]), **batch}
    return {"pixel_values": _stack(flat, "pixel_values"), **batch}


def split(inputs: dict[str, Tensor], counts: Sequence[int], layout: str) -> list[list[Picture]]:
    """Undoes `collate`, given the number of images in each row."""
    if not sum(counts):
        return [[] for _ in counts]
    keys = [key for key in VISION_KEYS if key in inputs]
    if layout == "rows":
        return [
            [{key: inputs[key][row, image] for key in keys} for image in range(count)]
            for row, count in enumerate(counts)
        ]
    columns = {key: list(inputs[key]) for key in keys}
    if layout == "patches":
        lengths = inputs["image_grid_thw"].prod(-1).tolist()
        columns["pixel_values"] = list(inputs["pixel_values"].split(lengths))
    flat = iter([{key: columns[key][index] for key in keys} for index in range(sum(counts))])
    return [[next(flat) for _ in range(count)] for count in counts]


VISION_KEYS = (
    "pixel_values",
    "pixel_attention_mask",
    "image_sizes",
    "image_grid_thw",
    "aspect_ratio_ids",
    "aspect_ratio_mask",
)
"""The inputs that hold images, over all families."""


def _stack(row: Sequence[Picture], key: str) -> Tensor:
    return torch.stack([picture[key] for picture in row])
