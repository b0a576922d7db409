"""EVS, efficient video sampling: parts of a video that change from frame to frame.

A visual token's change is one minus the cosine similarity between its embedding and that of the
same position in the frame before. The tokens that change most go on. The first frame of a video
always goes on whole, even if the share is smaller.

The paper compares the pixels of patches; the authors' code, which vLLM has, compares embeddings, as
here. It prunes videos alone. Here consecutive images with equally many tokens are frames of a
video, because many models read frames as images. A prompt in chunks is pruned chunk by chunk: the
first frame of each goes on whole. A stream of single frames is not pruned, with one warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F

from foveate.policies.amount import AmountLike
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, number_going_on, share
from foveate.stages.pruning_bases import BeforeAllLayers
from foveate.stages.video_frames import VideoShape, video_shapes, videos_of


@prunes("evs", "bagrov2025evs")
class EVSPrune(BeforeAllLayers):
    """Visual tokens of a video that differ from those at the same position one frame earlier.

    ``keep`` is a share of each video, of at least its first frame; an image alone stays whole.

    Source: EVS (arXiv:2510.14624), section 3, and the authors' code in vLLM.
    """

    compares_frames: ClassVar[bool] = True
    keep: AmountLike = "25%"

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        return (sum(self._count(shape) + shape.more for shape in video_shapes(images)),)

    def _count(self, shape: VideoShape) -> int:
        return max(shape.tokens, number_going_on(share(self.keep), shape.frames * shape.tokens))

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        goes_on = torch.zeros_like(tokens.vision)
        for row in range(len(goes_on)):
            for video in videos_of(tokens, row):
                states = tokens.hidden[row, video.frames].float()
                change = 1 - F.cosine_similarity(states[1:], states[:-1], dim=-1)
                first = torch.full_like(states[:1, :, 0], torch.inf)
                order = torch.cat([first, change]).flatten().argsort(descending=True, stable=True)
                frames, size = video.frames.shape
                count = self._count(VideoShape(frames, size, 0))
                goes_on[row, video.frames.flatten()[order[:count]]] = True
                goes_on[row, video.more] = True
        return Pruned(goes_on)
