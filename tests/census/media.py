"""Images and videos as each family's processor gives them, and the ids that stand for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from .sizes import AFTER, BEFORE, IMAGE, PATCH, SIDE, VIDEO

Picture = dict[str, Tensor]
"""One image or video: the keyword arguments of the model for it, without a batch dimension."""

Sample = Callable[[int, Generator], Picture]
"""Draws the ``index``-th image of a row."""

CHANNELS = 3


@dataclass(frozen=True)
class Media:
    """How a family takes its images, or its videos.

    Attributes:
        sample: Draws the pixels of the ``index``-th image from a generator.
        ids: The ids that stand for an image, borders and placeholders in their order.
        joined: Arguments that are concatenated over all images; others are stacked.
        by_row: Whether images are stacked by row, ``[batch, images, ...]``.
        types: Keyword under which the model takes its token types, if it does.
        kinds: The type of each id that is no text.
        leading: Whether the first image opens the prompt.
        answer: The type of what is said behind the prompt.
    """

    sample: Sample
    ids: Callable[[Picture], Sequence[int]]
    joined: frozenset[str] = frozenset()
    by_row: bool = False
    types: tuple[str, ...] = ()
    kinds: Mapping[int, int] = field(default_factory=lambda: {IMAGE: 1, VIDEO: 2})
    leading: bool = False
    answer: int = 0


def square(side: int = SIDE, key: str = "pixel_values") -> Sample:
    """An image of ``side`` by ``side`` pixels."""
    return lambda _index, generator: {key: _pixels(generator, side, side)}


def plain(
    count: int,
    side: int = SIDE,
    *,
    before: Sequence[int] = (),
    after: Sequence[int] = (),
    image: int = IMAGE,
    types: tuple[str, ...] = (),
) -> Media:
    """Square images that are ``count`` tokens each."""
    block = (*before, *[image] * count, *after)
    return Media(square(side), lambda _picture: block, types=types)


def bordered(count: int, side: int = SIDE) -> Media:
    """Square images of ``count`` tokens, opened and closed."""
    return plain(count, side, before=(BEFORE,), after=(AFTER,))


def sized(side: int = SIDE, sizes: Sequence[tuple[int, int]] = ((24, 16), (16, 24))) -> Sample:
    """Images padded to a square, with their own sizes beside them (Pixtral towers)."""

    def sample(index: int, generator: Generator) -> Picture:
        height, width = sizes[index % len(sizes)]
        pixels = torch.zeros(CHANNELS, side, side)
        pixels[:, :height, :width] = _pixels(generator, height, width)
        return {"pixel_values": pixels, "image_sizes": torch.tensor((height, width))}

    return sample


def masked(side: int = SIDE) -> Sample:
    """A square with a mask of its real pixels."""

    def sample(_index: int, generator: Generator) -> Picture:
        mask = torch.ones(side, side, dtype=torch.long)
        return {"pixel_values": _pixels(generator, side, side), "pixel_attention_mask": mask}

    return sample


GRIDS = ((4, 6), (4, 4), (6, 6))
"""Patch grids of images in turn: 6, 4 and 9 tokens after merging by 2."""


def patched(patch: int = PATCH, temporal: int = 2, *, nested: bool = False) -> Sample:
    """Flattened patches with their grid (the Qwen-VL families); unflattened where ``nested``."""

    def sample(index: int, generator: Generator) -> Picture:
        height, width = GRIDS[index % len(GRIDS)]
        shape: tuple[int, ...] = (CHANNELS * temporal * patch * patch,)
        if nested:
            shape = (CHANNELS, patch, patch)
        pixels = torch.randn(height * width, *shape, generator=generator)
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor((1, height, width))}

    return sample


def grid(
    *,
    patch: int = PATCH,
    temporal: int = 2,
    merge: int = 2,
    nested: bool = False,
    line: int = 0,
    around: int = 0,
    types: tuple[str, ...] = ("mm_token_type_ids",),
) -> Media:
    """Images of the Qwen-VL families.

    Args:
        patch: Side of a patch.
        temporal: Frames in a patch.
        merge: Patches merged into a token, along each side.
        nested: Whether patches keep their three dimensions.
        line: Placeholders added to each line.
        around: Placeholders added to each image.
        types: As in `Media`.
    """

    def ids(picture: Picture) -> list[int]:
        _, height, width = picture["image_grid_thw"].tolist()
        count = (height // merge) * (width // merge + line) + around
        return [BEFORE, *[IMAGE] * count, AFTER]

    sample = patched(patch, temporal, nested=nested)
    return Media(sample, ids, joined=frozenset({"pixel_values"}), types=types)


def clip(
    frames: Callable[[int], Sequence[int]],
    *,
    patch: int = PATCH,
    temporal: int = 2,
    types: tuple[str, ...] = ("mm_token_type_ids",),
    steps: int = 2,
    extra: Mapping[str, Tensor] | None = None,
) -> Media:
    """Videos of the Qwen-VL families: ``steps`` merged frames of 4 by 4 patches.

    Args:
        frames: The ids of the whole video, given the tokens of one merged frame.
        patch: Side of a patch.
        temporal: Frames in a patch.
        types: As in `Media`.
        steps: Number of merged frames.
        extra: Further arguments of each video.
    """

    def sample(_index: int, generator: Generator) -> Picture:
        length = CHANNELS * temporal * patch * patch
        pixels = torch.randn(steps * 16, length, generator=generator)
        shape = torch.tensor((steps, 4, 4))
        return {"pixel_values_videos": pixels, "video_grid_thw": shape, **(extra or {})}

    joined = frozenset({"pixel_values_videos"})
    return Media(sample, lambda _picture: frames(4), joined=joined, types=types)


def one_block(count: int) -> list[int]:
    """A video of two merged frames in one run of placeholders (Qwen2-VL)."""
    return [BEFORE, *[VIDEO] * (2 * count), AFTER]


def by_frame(count: int) -> list[int]:
    """A video whose merged frames have a time stamp and borders each (Qwen3-VL)."""
    return [30, BEFORE, *[VIDEO] * count, AFTER, 31, BEFORE, *[VIDEO] * count, AFTER]


def _pixels(generator: Generator, height: int, width: int) -> Tensor:
    return torch.randn(CHANNELS, height, width, generator=generator)
