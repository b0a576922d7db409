"""DivPrune: visual tokens that differ from each other, whatever looks at them.

The paper prunes an image's tokens before the language model reads them, by the cosine distance of
their embeddings; it is no cache policy. This is its selection (max-min diversity, the greedy
algorithm) read as one: after the prefill, by the distance of keys, each KV head for itself. So it
saves memory and no prefill, and a token that leaves the cache has been read. `divprune.prune()` in
front of a method drops tokens as the paper does, and saves prefill.

Every image token competes with those of all images. Text stands before images, as the paper keeps
all of it: where it does not fit, the newest stays, beside the first `sinks` tokens; with
`protect_text=True` a budget that does not hold all of it is refused. What is kept anyhow counts as
chosen, if it is visual.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Recent
from foveate.stages import Recency, TopK, Uniform, highest
from foveate.stages.farthest import spread


@stage("max_min", head_by_head=True)
class MaxMin(TopK):
    """Beside what ``top_k`` always keeps: text, the highest scores of it if not all fits; in the
    places that it leaves, one visual token after the other, each the farthest from all that were
    chosen before it, by the cosine distance of keys in float32. The first is the one whose nearest
    neighbour is farthest. Of equals the earlier wins.

    Source: DivPrune (arXiv:2503.02175), section 3.3 and Algorithm 1.
    """

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, vision = scored.scores.values, scored.layer.vision
        protected, free = values == torch.inf, values.isfinite()
        places = counts - protected.sum(-1)
        text = free & ~vision
        floor = torch.minimum(text.sum(-1), places)
        kept = protected | highest(values.masked_fill(~text, -torch.inf), floor) & text
        seen = spread(scored.layer.k, free & vision, protected & vision, places - floor)
        return kept | seen


@method("alvar2025divprune", adds=("select",))
def divprune(
    *, budget: Amount, recent: Recent = 0, sinks: Count = 4, protect_text: bool = False
) -> Policy:
    """Keeps text, and visual tokens whose keys differ from each other; needs no attention.

    Defaults:
        no parameter in the paper; `sinks`: here, for text that does not fit
    """
    return Policy(
        score=Recency(),
        budget=Uniform(amount=budget),
        select=MaxMin(recent=recent, sinks=sinks, protect_text=protect_text),
    )
