"""RoCo's selection: of what receives little attention, only what receives it steadily goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.core.layer import Scored
from foveate.core.parameters import Count, Recent
from foveate.core.spec import stage
from foveate.errors import InvalidParameter
from foveate.stages.select.keeps_recent import KeepsEnds
from foveate.stages.select.top_k import highest


@stage("robust")
@dataclass(frozen=True, kw_only=True)
class Robust(KeepsEnds):
    """Beside the first ``sinks`` and the last ``recent`` tokens, keeps those whose part "deviation"
    is high, and of the others, as many as are kept or as have to go, the highest scores.

    Source: RoCo (arXiv:2402.06262), section 4, and the release.
    """

    head_by_head: ClassVar[bool] = True
    recent: Recent = 0.3
    sinks: Count = 4

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        if "deviation" not in scored.scores.parts:
            raise InvalidParameter(
                "selection robust needs a score with a part 'deviation', such as mean_attention()."
            )
        values, deviation = scored.scores.values, scored.scores.parts["deviation"]
        free, protected = values.isfinite(), values == torch.inf
        chosen = counts - protected.sum(-1)
        steady = torch.maximum(chosen, free.sum(-1) - chosen)
        can_go = highest((-deviation).masked_fill(~free, -torch.inf), steady) & free
        above = torch.where(can_go, 0.0, 1.0 + values.masked_fill(~free, 0.0).amax(-1, True))
        return protected | highest((values + above).masked_fill(~free, -torch.inf), chosen)
