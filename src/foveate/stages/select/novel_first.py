"""A share of what is kept goes to what is new in a video, the rest to the highest scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.core.layer import Scored
from foveate.core.parameters import Share
from foveate.core.spec import stage
from foveate.errors import InvalidParameter
from foveate.stages.recent import part
from foveate.stages.select.top_k import TopK, highest


@stage("novel_first")
@dataclass(frozen=True, kw_only=True)
class NovelFirst(TopK):
    """Beside what ``top_k`` always keeps: of the places that text would leave, ``share`` (rounded
    down) to the highest part "novelty", all others to the highest scores.

    Source: InfiniPot-V (arXiv:2506.15745), section 4.
    """

    head_by_head: ClassVar[bool] = True
    share: Share = 0.5

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        if "novelty" not in scored.scores.parts:
            raise InvalidParameter(
                f"{self!r} draws on how new tokens are, and this score does not tell. Use it with "
                "score=novelty(of=...)."
            )
        values = scored.scores.values
        free = values.isfinite()
        text = ((values == torch.inf) | (free & ~scored.layer.vision)).sum(-1)
        left = (counts - text).clamp_min(0)
        novelty = scored.scores.parts["novelty"].masked_fill(~free, -torch.inf)
        wanted = torch.minimum(part(left, self.share), novelty.isfinite().sum(-1))
        novel = highest(novelty, wanted)
        return highest(values.masked_fill(novel, torch.inf), counts)
