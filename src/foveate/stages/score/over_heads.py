"""One ranking for a whole layer, shared by its heads."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from foveate.core.layer import Layer, Scores
from foveate.core.protocols import Score
from foveate.core.spec import stage


@stage("head_mean")
@dataclass(frozen=True, kw_only=True)
class HeadMean:
    """The mean over the layer's KV heads of the score that it wraps, and of its parts.

    Source: Elastic Cache (arXiv:2407.18121) and PrefixKV (arXiv:2412.03409), section 3.2.
    """

    of: Score

    def queries(self, tokens: int) -> int:
        return self.of.queries(tokens)

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        parts = {name: _shared(part) for name, part in scores.parts.items()}
        return scores._replace(values=_shared(scores.values), parts=parts)


def _shared(values: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    return values.mean(1, keepdim=True).expand_as(values)
