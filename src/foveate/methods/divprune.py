"""DivPrune: visual tokens that differ from each other, whatever attends to them.

The paper prunes an image's tokens before the language model reads them, by the cosine distance of
their embeddings; it is no cache policy. Here its selection (max-min diversity, the greedy
algorithm) is a cache policy: after the prefill, by the distance of keys, for each KV head by
itself. It saves memory but no prefill, and later layers have seen the dropped tokens.
`divprune.prune()` in front of a method drops tokens before the prefill, as the paper does.

Tokens of all images compete with each other. Text comes before images, as the paper keeps all of
it. Where text does not fit, the newest stays, beside the first `sinks` tokens; with
`protect_text=True` a budget that does not hold all text is refused. Visual tokens that are kept
anyway count as chosen.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Recent
from foveate.stages import Recency, TopK, Uniform, highest
from foveate.stages.max_min import spread


@stage("max_min", head_by_head=True)
class MaxMin(TopK):
    """Selection of text first, then of visual tokens that are far from each other.

    It is applied beside the tokens that ``top_k`` always keeps. Text that does not all fit is
    ranked by its scores. Each visual token is the one farthest from all chosen before it, by the
    cosine distance of keys in float32; the first is the one whose nearest neighbour is farthest. Of
    equals the earlier token wins.

    Source: DivPrune (arXiv:2503.02175), section 3.3 and Algorithm 1.
    """

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, vision = scored.scores.values, scored.layer.vision
        protected, free = values == torch.inf, values.isfinite()
        free_slots = counts - protected.sum(-1)
        text = free & ~vision
        floor = torch.minimum(text.sum(-1), free_slots)
        kept = protected | highest(values.masked_fill(~text, -torch.inf), floor) & text
        spread_out = spread(scored.layer.k, free & vision, protected & vision, free_slots - floor)
        return kept | spread_out


@method("alvar2025divprune", adds=("select",))
def divprune(
    *, budget: Amount, recent: Recent = 0, sinks: Count = 4, protect_text: bool = False
) -> Policy:
    """Text, and visual tokens whose keys differ from each other; needs no attention.

    Greedy max-min diversity by cosine distance: section 3.3, Algorithm 1.

    Defaults:
        no parameter in the paper; `sinks`: here, for text that does not fit
    """
    return Policy(
        score=Recency(),
        budget=Uniform(amount=budget),
        select=MaxMin(recent=recent, sinks=sinks, protect_text=protect_text),
    )
