"""DivPrune: visual tokens that differ from each other, whatever attends to them.

Before the first layer, tokens are chosen by the cosine distance of the embeddings that the decoder
receives: each is the one farthest from all chosen before it. The first is the one whose nearest
neighbour is farthest. Tokens of all images of a row compete. The remaining tokens keep their
positions.
"""

from __future__ import annotations

import torch

from foveate.policies.amount import AmountLike
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, going_on, share
from foveate.stages.max_min import spread
from foveate.stages.pruning_bases import BeforeAllLayers


@prunes("divprune")
class DivPrunePrune(BeforeAllLayers):
    """Visual tokens whose embeddings are far from each other (greedy max-min diversity).

    Source: DivPrune (arXiv:2503.02175), section 3.3 and Algorithm 1.
    """

    keep: AmountLike = "9.8%"

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        counts, visual = going_on(share(self.keep), tokens.visual_tokens), tokens.vision[:, None]
        none = torch.zeros_like(visual)
        return Pruned(spread(tokens.hidden[:, None], visual, none, counts[:, None])[:, 0])
