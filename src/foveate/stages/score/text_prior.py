"""LOOK-M's prior: text before images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from foveate.core.layer import Layer, Scores
from foveate.core.protocols import Score
from foveate.core.spec import stage
from foveate.stages.score.normalise import over_tokens


@stage("text_prior")
@dataclass(frozen=True, kw_only=True)
class TextPrior:
    """LOOK-M eq. 5: A_s[T] + T_p, T_p = max(A_s), head by head, over the score that it wraps.

    The part "importance" is the score without the prior.
    """

    head_by_head: ClassVar[bool] = True
    of: Score

    def queries(self, tokens: int) -> int:
        return self.of.queries(tokens)

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        values = scores.values.float()
        values = over_tokens(layer.slots).lifted(values)
        prior = values.masked_fill(~layer.valid, -torch.inf).amax(-1, keepdim=True)
        raised = torch.where(layer.vision, values, values + prior)
        parts = {"importance": values, **scores.parts}
        return scores._replace(values=raised, parts=parts)
