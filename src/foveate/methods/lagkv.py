"""LagKV: tokens whose keys and values vary widely relative to the next part of the prompt.

Scores are those of NVIDIA's kvpress. Differences from it: tokens that it always keeps (sinks, the
last part) score above 1 here, the sinks highest and the others by age, so that a budget that does
not hold all of them drops the oldest; a channel that does not vary in a part counts as zero there,
where the release divides by zero; float32 throughout. Difference from the paper: the cache is
compressed once after the prefill, not again while decoding (``when=over_budget`` does that).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Factor, Positive
from foveate.stages import TopK, Uniform
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.token_span import span

FLAT = 1e-12
"""Range below which a channel counts as constant."""


@stage("lag_relative", head_by_head=True)
class LagRelative(WithoutQueries):
    """Spread of each token's keys and values, scaled by the range of the next part of the prompt.

    After the first ``sinks`` tokens the prompt is cut into parts of ``lag`` tokens. A token's
    channels are scaled by the minimum and maximum of the same channel in the next part. The softmax
    over the part of their standard deviation, averaged over keys and values (values weigh
    ``value_weight`` times as much), is the token's score: as a rank within the part, between 0 and
    1, or with ``cross_scoring`` as it is, so that parts compete.

    Tokens without a full part after them score above 1, and so do the sinks. With fewer than two
    parts, later tokens score higher.

    Source: LagKV (arXiv:2504.04704), the lag-relative score, and kvpress.
    """

    sinks: Count = 4
    lag: Positive = 128
    cross_scoring: bool = False
    value_weight: Factor = 1.0

    def __call__(self, layer: Layer) -> Scores:
        after = span(layer.slots, self.sinks)
        index = torch.arange(after.longest, device=layer.k.device)
        count = after.count[..., None]
        parts = count // self.lag
        far, near = 1 + (index + 1).float() / count.clamp_min(1), index.float() / count
        values = torch.where(parts > 1, far, near)
        if (part_count := int(parts.max())) > 1:
            k, v = (self._in_parts(after.take(x), part_count) for x in (layer.k, layer.v))
            measured = F.pad(self._compared(k, v).flatten(2), (0, after.longest), value=0.0)
            compared = index < (parts - 1) * self.lag
            values = torch.where(compared, measured[..., : after.longest], values)
        return Scores(after.put(values, 2.0))

    def _in_parts(self, x: Float[Tensor, "b h l d"], parts: int) -> Float[Tensor, "b h p t d"]:
        b, h, _, d = x.shape
        return x[:, :, : parts * self.lag].reshape(b, h, parts, self.lag, d).float()

    def _compared(
        self, k: Float[Tensor, "b h p t d"], v: Float[Tensor, "b h p t e"]
    ) -> Float[Tensor, "b h p-1 t"]:
        of_values = self.value_weight / (1 + self.value_weight)
        scores = relative(k).lerp(relative(v), of_values)
        return scores if self.cross_scoring else ranks(scores) / self.lag


def relative(x: Float[Tensor, "b h p t d"]) -> Float[Tensor, "b h p-1 t"]:
    """Return each token's spread, scaled by the next part's range, for all parts but the last."""
    behind = x[:, :, 1:]
    low = behind.amin(3, keepdim=True)
    width = behind.amax(3, keepdim=True) - low
    flat = width < FLAT
    scaled = ((x[:, :, :-1] - low) / width.masked_fill(flat, 1.0)).masked_fill(flat, 0.0)
    spread: Tensor = scaled.std(-1, correction=min(1, x.shape[-1] - 1))
    return spread.softmax(-1)


def ranks(scores: Float[Tensor, "*x t"]) -> Int[Tensor, "*x t"]:
    """Return ranks from 0 for the lowest score; of equal scores the earlier ranks higher."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    return scores.shape[-1] - 1 - order.argsort(dim=-1)


@method("liang2025lagkv")
def lagkv(
    *,
    budget: Amount,
    sinks: Count = 4,
    lag: Positive = 128,
    cross_scoring: bool = False,
    value_weight: Factor = 1.0,
) -> Policy:
    """Newest tokens, and those that differ most from the tokens after them; needs no attention.

    Args:
        lag: Tokens of each part, which is compared with the next, e.g. 128.
        cross_scoring: Let parts of the prompt compete, by scores instead of ranks.
        value_weight: Weight of values relative to keys.

    Defaults:
        kvpress; the release has 16 sinks and parts of 1,024 tokens, its README 64 and 128
    """
    return Policy(
        score=LagRelative(
            sinks=sinks, lag=lag, cross_scoring=cross_scoring, value_weight=value_weight
        ),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks),
    )
