"""Scores that wrap another score: one ranking for all heads of a layer, and text before images."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.spec import stage
from foveate.stages.score.bases import Wrapper
from foveate.stages.score.normalise import over_tokens


@stage("head_mean")
class HeadMean(Wrapper):
    """Mean of the wrapped score, and of its parts, over the layer's KV heads.

    Source: Elastic Cache (arXiv:2407.18121) and PrefixKV (arXiv:2412.03409), section 3.2.
    """

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        parts = {name: _shared(part) for name, part in scores.parts.items()}
        return scores._replace(values=_shared(scores.values), parts=parts)


def _shared(values: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    return values.mean(1, keepdim=True).expand_as(values)


@stage("text_prior", head_by_head=True)
class TextPrior(Wrapper):
    """Another score plus a text prior, head by head: A_s[T] + T_p, T_p = max(A_s) (LOOK-M eq. 5).

    The part "importance" is the score without the prior.
    """

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        values = scores.values.float()
        values = over_tokens(layer.slots).lifted(values)
        prior = values.masked_fill(~layer.valid, -torch.inf).amax(-1, keepdim=True)
        raised = torch.where(layer.vision, values, values + prior)
        parts = {"importance": values, **scores.parts}
        return scores._replace(values=raised, parts=parts)
