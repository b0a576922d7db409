"""Recent frames: text and the last few images, and no earlier images.

It is a baseline that a video method has to beat: with four frames it is above most systems that its
paper compares. Difference from the paper: there the last frames are encoded again with every
question; here their keys and values were computed while earlier frames were still visible, and
positions stay.
"""

from __future__ import annotations

from dataclasses import field

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive
from foveate.stages import OverBudget, Recency, TextPrior, TopK, Uniform, highest


@stage("last_frames")
class LastFrames(TopK):
    """Selection of text and the last ``frames`` images, beside what ``top_k`` always keeps.

    Where the budget does not hold them, they are ranked by score. It may keep less than its budget.

    Source: SimpleStream (arXiv:2604.02317), section 3.
    """

    frames: Positive = 4
    spares: bool = field(default=True, init=False)

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        image, values = scored.layer.slots.known_image, scored.scores.values
        newest = image.masked_fill(~scored.layer.valid, -1).amax((1, 2), keepdim=True)
        selected = (image < 0) | (image > newest - self.frames) | (values == torch.inf)
        selected &= values > -torch.inf
        return highest(values.masked_fill(~selected, -torch.inf), counts.minimum(selected.sum(-1)))


@method("shen2026simplestream", adds=("score", "select", "when"))
def recent_frames(*, budget: Amount, frames: Positive = 4) -> Policy:
    """Text and the last frames; a frame is an image, or one frame of a video.

    Give a budget that holds ``frames`` frames. Under a larger one earlier frames stay until it is
    full (section 3).

    Args:
        frames: Number of last images that are kept, e.g. 4.

    Defaults:
        paper
    """
    return Policy(
        score=TextPrior(of=Recency()),
        budget=Uniform(amount=budget),
        select=LastFrames(frames=frames),
        when=OverBudget(every=1, reading=True, answering=False),
    )
