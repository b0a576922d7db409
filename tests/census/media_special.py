"""Images in the forms that few families have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Generator

from .media import CHANNELS, Media, Picture, Sample
from .sizes import AFTER, BEFORE, IMAGE, PATCH, VIDEO

TILE = 8
"""Side of a tile in pixels."""

PINPOINTS = [[8, 16], [16, 8], [16, 16]]
"""Shapes of images made of tiles."""


def tiled(side: int = TILE, cells: int = 2, line: int = 1, image: int = IMAGE) -> Media:
    """Images as an overview and tiles (LLaVA-NeXT); those with few tiles are padded.

    Args:
        side: Side of a tile in pixels.
        cells: Side of a tile in tokens.
        line: Tokens at the end of each line of the tiles.
        image: The placeholder.
    """
    shapes = ((1, 2), (2, 1), (2, 2))

    def sample(index: int, generator: Generator) -> Picture:
        rows, columns = shapes[index % 3]
        pixels = torch.zeros(5, CHANNELS, side, side)
        count = rows * columns + 1
        pixels[:count] = torch.randn(count, CHANNELS, side, side, generator=generator)
        return {"pixel_values": pixels, "image_sizes": torch.tensor((rows * side, columns * side))}

    def ids(picture: Picture) -> list[int]:
        rows, columns = (int(each) // side * cells for each in picture["image_sizes"])
        return [image] * (cells * cells + rows * (columns + line))

    return Media(sample, ids)


def placed(
    length: int,
    *,
    side: int = 6,
    pool: int = 2,
    pixels: str = "pixel_values",
    places: str = "image_position_ids",
) -> Media:
    """Images as patches with their places, padded by two (Gemma 4)."""

    def sample(_index: int, generator: Generator) -> Picture:
        count = side * side
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        values = torch.zeros(count + pool * pool, length)
        values[:count] = torch.rand(count, length, generator=generator)
        where = torch.full((count + pool * pool, 2), -1)
        where[:count] = torch.stack([columns.flatten(), rows.flatten()], dim=-1)
        return {pixels: values, places: where}

    block = [BEFORE, *[IMAGE] * (side // pool) ** 2, AFTER]
    return Media(sample, lambda _picture: block, types=("mm_token_type_ids",))


def placed_frames(length: int, *, side: int = 4, pool: int = 2, frames: int = 2) -> Media:
    """Videos of the same kind, each frame with a time stamp and borders."""

    def sample(_index: int, generator: Generator) -> Picture:
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        where = torch.stack([columns.flatten(), rows.flatten()], dim=-1)
        return {
            "pixel_values_videos": torch.rand(frames, side * side, length, generator=generator),
            "video_position_ids": where.expand(frames, -1, -1).clone(),
            "num_frames_per_video": torch.tensor(frames),
        }

    frame = [30, BEFORE, *[VIDEO] * (side // pool) ** 2, AFTER]
    joined = frozenset({"pixel_values_videos", "video_position_ids"})
    return Media(sample, lambda _: frame * frames, joined=joined, types=("mm_token_type_ids",))


def tile_stack(side: int, ids: Sequence[int], mask: str | None = None, **extra: Any) -> Media:
    """Square images stacked by row, with a mask where the family asks for one."""

    def sample(_index: int, generator: Generator) -> Picture:
        picture = {"pixel_values": torch.randn(CHANNELS, side, side, generator=generator)}
        if mask == "pixels":
            picture["pixel_attention_mask"] = torch.ones(side, side, dtype=torch.long)
        if mask == "tiles":
            picture["pixel_attention_mask"] = torch.tensor(True)
        return picture

    return Media(sample, lambda _picture: ids, by_row=True, **extra)


def frames(
    ids: Sequence[int], *, side: int, count: int = 2, key: str = "pixel_values_videos"
) -> Media:
    """Videos as square frames."""

    def sample(_index: int, generator: Generator) -> Picture:
        return {key: torch.randn(count, CHANNELS, side, side, generator=generator)}

    return Media(sample, lambda _picture: ids)


def tubelets(count: int, side: int = 24) -> Media:
    """Videos as pairs of frames, with the placeholder of images (Nemotron)."""

    def sample(_index: int, generator: Generator) -> Picture:
        return {
            "pixel_values_videos": torch.randn(2, 2 * CHANNELS, side, side, generator=generator)
        }

    return Media(sample, lambda _picture: [BEFORE, *[IMAGE] * count, AFTER])


def strips(count: int, length: int = CHANNELS * PATCH * PATCH) -> Sample:
    """An image as flattened patches without a grid (Fuyu)."""
    return lambda _index, generator: {
        "pixel_values": torch.randn(count, length, generator=generator)
    }
