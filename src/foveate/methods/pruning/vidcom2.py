"""VidCom2, video compression commander: tokens unlike the rest of their video and of their frame.

Of each video, the half of the channels with the lowest variance is read, and every token's unit
vector compared with the mean over the video and the mean over its frame, by Gaussian kernels of
five widths. Frames that are less like the video keep more tokens (a softmax with temperature 0.01
over frames), and of each frame the tokens that are least like both means go on.

Differences from the release: ``keep=100%`` keeps everything, where the release's frames of average
interest lose a part even then; of tokens with equal scores the earlier goes on; and, as for EVS,
consecutive images with equally many tokens are frames of a video.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.policies.amount import AmountLike
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, number_going_on, share
from foveate.stages.pruning_bases import BeforeAllLayers
from foveate.stages.video_frames import video_shapes, videos_of

WIDTHS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)
TEMPERATURE = 0.01


@prunes("vidcom2", "liu2025vidcom2")
class VidCom2Prune(BeforeAllLayers):
    """Visual tokens of a video that are least like its mean and like their frame's mean.

    ``keep`` is the share of each video that goes on, on average over its frames and before each
    frame's number is rounded; every frame keeps at least one token.

    Source: VidCom2 (arXiv:2505.14454), section 3 and the release.
    """

    keep: AmountLike = "25%"

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        """Return the largest possible number: rounding adds at most one token to each frame."""
        return (
            sum(
                min(frames * size, number_going_on(share(self.keep), frames * size) + frames) + more
                for frames, size, more in video_shapes(images)
            ),
        )

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        keep = share(self.keep)
        if keep.everything:
            return Pruned(tokens.vision)
        goes_on = torch.zeros_like(tokens.vision)
        for row in range(len(goes_on)):
            for video in videos_of(tokens, row):
                states = tokens.hidden[row, video.frames].float()
                goes_on[row, video.frames[outliers(states, float(keep.value))]] = True
                goes_on[row, video.more] = True
        return Pruned(goes_on)


def outliers(states: Float[Tensor, "f s c"], keep: float) -> Bool[Tensor, "f s"]:
    """Mark the tokens of a video that go on; ``keep`` is their share on average."""
    channels = states.flatten(0, 1).var(0, unbiased=False).argsort(stable=True)
    unit = F.normalize(states[..., channels[: states.shape[-1] // 2]], dim=-1)
    like_video = _likeness(unit, unit.mean((0, 1), keepdim=True))
    like_frame = _likeness(unit, unit.mean(1, keepdim=True))
    interest = ((-like_video.mean(1)) / TEMPERATURE).softmax(0)
    shares = (keep * (1 + interest - interest.mean())).clamp(max=1.0)
    counts = (shares * states.shape[1]).round().long().clamp_min(1)
    rank = (like_video + like_frame).argsort(stable=True).argsort()
    return rank < counts[:, None]


def _likeness(unit: Float[Tensor, "f s c"], mean: Float[Tensor, "_ 1 c"]) -> Float[Tensor, "f s"]:
    distance = ((unit - mean) ** 2).sum(-1)
    return torch.stack([torch.exp(-distance / (2 * width)) for width in WIDTHS]).sum(0)
