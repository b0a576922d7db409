"""The highest scores, beside what is always kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.core.layer import Layer, Scored
from foveate.core.spec import stage
from foveate.stages.select.keeps_recent import KeepsEnds


@stage("top_k")
@dataclass(frozen=True, kw_only=True)
class TopK(KeepsEnds):
    """The first ``sinks`` tokens, the last ``recent`` tokens, with ``protect_text`` every text
    token, and the highest scores of the rest.

    ``recent`` is a number of tokens (int) or a share of the budget (float in [0, 1)). All count
    inside the budget. Of equal scores the earlier token wins.
    """

    protect_text: bool = False

    def protect(self, layer: Layer, tokens: Int[Tensor, "b"]) -> Bool[Tensor, "b h n"]:
        marked = super().protect(layer, tokens)
        return marked | ~layer.vision if self.protect_text else marked

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        return highest(scored.scores.values, counts)


def highest(scores: Tensor, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
    """Marks the ``counts`` highest scores of each row and head; of equal ones the earlier."""
    most = max(1, int(counts.max()))
    ranked = scores.topk(most, dim=-1).values
    threshold = ranked.gather(-1, (counts - 1).clamp_min(0)[..., None])
    marked = scores >= threshold
    if torch.equal(marked.sum(-1), counts):
        return marked  # nothing else has the last one's score
    above, ties = scores > threshold, scores == threshold
    wanted = counts[..., None] - above.sum(-1, keepdim=True)
    return (above | (ties & (ties.cumsum(-1) <= wanted))) & (counts > 0)[..., None]
