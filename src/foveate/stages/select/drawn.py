"""NACL's selection: some by rank, some by lot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.core.layer import Scored
from foveate.core.parameters import Count, Recent, Seed, Share
from foveate.core.spec import stage
from foveate.stages.score.noise import gumbel
from foveate.stages.select.keeps_recent import KeepsEnds
from foveate.stages.select.top_k import highest


@stage("top_and_drawn")
@dataclass(frozen=True, kw_only=True)
class TopAndDrawn(KeepsEnds):
    """Beside the first ``sinks`` and the last ``recent`` tokens: of the places that are left, a
    share ``drawn`` goes by lot, without replacement, with the probabilities softmax(score) of what
    is not among the best, and all others go to the highest scores.

    A token's lot follows from ``seed``, layer, head and its position.

    Source: NACL (arXiv:2408.03675), section 3.3.
    """

    drawn: Share = 0.37
    seed: Seed = 0
    recent: Recent = 0.05
    sinks: Count = 4

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, layer = scored.scores.values, scored.layer
        free, protected = values.isfinite(), values == torch.inf
        places = counts - protected.sum(-1)
        lots = (places * self.drawn).long()
        best = highest(values.masked_fill(~free, -torch.inf), places - lots)
        heads = torch.arange(values.shape[1], device=values.device)[None, :, None]
        noise = gumbel(self.seed, torch.full_like(heads, layer.ordinal), heads, layer.pos)
        lot = (values + noise).masked_fill(~free | best, -torch.inf)
        return protected | best | highest(lot, lots)
