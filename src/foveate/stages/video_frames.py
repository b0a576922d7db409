"""Frames of videos among the visual tokens of a pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.policies.pruning import EnteringTokens


class VideoShape(NamedTuple):
    """Size of a video: frames, visual tokens of each, and further tokens of the last frame."""

    frames: int
    tokens: int
    more: int


class VideoTokens(NamedTuple):
    """Visual tokens of one video, as their positions in the pass.

    ``more`` are those of the last frame that the others lack: LLaVA-OneVision ends a video with a
    token of its own.
    """

    frames: Int[Tensor, "f s"]
    more: Int[Tensor, "m"]


def video_shapes(images: Sequence[int]) -> list[VideoShape]:
    """Group a row's images into videos, given the visual tokens of each.

    Consecutive images with equally many tokens are a video, whether they were frames or images; one
    more token is the end of a video. A single image is a video of one frame.
    """
    shapes: list[VideoShape] = []
    for count in images:
        frames, tokens, more = shapes[-1] if shapes else VideoShape(0, -1, 0)
        if not more and count - tokens in (0, 1):
            shapes[-1] = VideoShape(frames + 1, tokens, count - tokens)
        else:
            shapes.append(VideoShape(1, count, 0))
    return shapes


def videos_of(tokens: EnteringTokens, row: int) -> Iterator[VideoTokens]:
    """Iterate over the videos of a row."""
    image = tokens.image[row].masked_fill(~tokens.vision[row], -1)
    index = (image >= 0).nonzero()[:, 0]
    counts: list[int] = torch.unique_consecutive(image[index], return_counts=True)[1].tolist()
    for frames, size, more in video_shapes(counts):
        video, index = index[: frames * size + more], index[frames * size + more :]
        yield VideoTokens(video[: frames * size].view(frames, size), video[frames * size :])
