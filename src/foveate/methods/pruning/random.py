"""Random visual tokens: the baseline that every pruning method has to beat."""

from __future__ import annotations

from foveate.policies.amount import AmountLike
from foveate.policies.parameters import Seed
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, share
from foveate.stages.pruning_bases import BeforeAllLayers, highest_visual
from foveate.stages.score.attention_free import uniform


@prunes("random")
class RandomPrune(BeforeAllLayers):
    """Visual tokens drawn at random, the same for all layers from the first on.

    A token's draw depends only on its position in its row and on ``seed``.
    """

    keep: AmountLike = "50%"
    seed: Seed = 0

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        return highest_visual(tokens, uniform(self.seed, tokens.pos), share(self.keep))
