"""RoCo: tokens that receive little attention, and steadily so, are evicted.

It runs once after the prefill by default; ``when=over_budget`` is the paper's own rule. Differences
from the authors' code: true positions; the deviation of a token that one query has seen is zero,
where the release's can be NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Recent
from foveate.stages import KeepsEnds, Uniform, highest
from foveate.stages.score.attention_rows import rows, times_seen
from foveate.stages.score.bases import WithoutQueries


@stage("mean_attention", head_by_head=True)
class MeanAttention(WithoutQueries):
    """Mean attention of a slot over the queries that see it, with its standard deviation.

    The part "deviation" is the standard deviation; both are of the mean over the query heads of a
    KV head. Queries of later passes are added.

    Source: RoCo (arXiv:2402.06262), section 4.
    """

    def observe(self, layer: Layer) -> Mapping[str, Tensor]:
        """Add this pass's attention, its squares, and the number of queries that saw each slot."""
        # in float64: the variance is a small difference of large sums
        zeros = torch.zeros(layer.pos.shape, dtype=torch.float64, device=layer.k.device)
        state = {
            "total": zeros,
            "squares": zeros.clone(),
            "count": times_seen(layer).expand(layer.pos.shape).double(),
        }
        for _, paid in rows(layer):
            mean = paid.mean(2).double()
            state["total"] += mean.sum(2)
            state["squares"] += mean.square().sum(2)
        return {name: layer.state.get(name, 0) + new for name, new in state.items()}

    def __call__(self, layer: Layer) -> Scores:
        count = layer.state["count"].clamp_min(1)
        mean = layer.state["total"] / count
        variance = layer.state["squares"] / count - mean.square()
        return Scores(mean.float(), parts={"deviation": variance.clamp_min(0.0).sqrt().float()})


@stage("robust", head_by_head=True)
class Robust(KeepsEnds):
    """Selection of tokens whose part "deviation" is high, then of the highest scores.

    The first ``sinks`` and the last ``recent`` tokens are always kept. The candidates for eviction
    are the tokens of lowest deviation, as many as are kept or as are evicted, whichever is more;
    among these the highest scores stay.

    Source: RoCo (arXiv:2402.06262), section 4, and the release.
    """

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


@method("ren2024roco")
def roco(
    *,
    budget: Amount,
    recent: Recent = 0.3,
    sinks: Count = 4,
) -> Policy:
    """Tokens whose attention is high on average, or varies.

    Section 4: mean and standard deviation of the attention over queries.

    Defaults:
        release, while decoding; 0.1 where it reads a prompt
    """
    return Policy(
        score=MeanAttention(),
        budget=Uniform(amount=budget),
        select=Robust(recent=recent, sinks=sinks),
    )
