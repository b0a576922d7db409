"""Recent frames: the last few images whole, and nothing of those before. A baseline that a method
for video has to beat: with four frames it is above most systems that its paper compares.

Departs from the paper in one point: there, the last frames are read anew with every question; here
their keys and values were made while earlier frames could still be seen, and positions stay.
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
    """Beside what ``top_k`` always keeps: text and the last ``frames`` images, by rank where the
    budget does not hold them; it may keep less than its budget.

    Source: SimpleStream (arXiv:2604.02317), section 3.
    """

    frames: Positive = 4
    spares: bool = field(default=True, init=False)

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        image, values = scored.layer.slots.known_image, scored.scores.values
        newest = image.masked_fill(~scored.layer.valid, -1).amax((1, 2), keepdim=True)
        wanted = (image < 0) | (image > newest - self.frames) | (values == torch.inf)
        wanted &= values > -torch.inf
        return highest(values.masked_fill(~wanted, -torch.inf), counts.minimum(wanted.sum(-1)))


@method("shen2026simplestream", adds=("score", "select", "when"))
def recent_frames(*, budget: Amount, frames: Positive = 4) -> Policy:
    """Keeps text and the last frames whole; a frame is an image, or one of a video.

    The budget is to hold as many frames: earlier ones stay until a larger one is full.

    Args:
        frames: Images that are kept, of the last ones.

    Defaults:
        paper
    """
    return Policy(
        score=TextPrior(of=Recency()),
        budget=Uniform(amount=budget),
        select=LastFrames(frames=frames),
        when=OverBudget(every=1, reading=True, answering=False),
    )
