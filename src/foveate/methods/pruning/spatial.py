"""Evenly spaced visual tokens: a coarser picture, whatever is on it."""

from __future__ import annotations

from foveate.policies.amount import AmountLike
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, going_on, share
from foveate.stages.pruned import BeforeAllLayers


@prunes("spatial")
class SpatialPrune(BeforeAllLayers):
    """Visual tokens at even distances, whatever is on them.

    Distances are those of the order in which tokens are read, line by line and image by image, so
    that every image keeps the same share, to one token.
    """

    keep: AmountLike = "50%"

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        visual = tokens.vision
        number, given = visual.long().cumsum(-1), tokens.visual_tokens[:, None]
        wanted = going_on(share(self.keep), tokens.visual_tokens)[:, None]
        given = given.clamp_min(1)  # of a row without any, no token is marked anyway
        return Pruned(visual & (number * wanted // given > (number - 1) * wanted // given))
