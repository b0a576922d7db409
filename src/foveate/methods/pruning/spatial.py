"""Evenly spaced visual tokens: a coarser image, whatever its content."""

from __future__ import annotations

from foveate.policies.amount import AmountLike
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, going_on, share
from foveate.stages.pruning_bases import BeforeAllLayers


@prunes("spatial")
class SpatialPrune(BeforeAllLayers):
    """Visual tokens at even distances, whatever their content.

    Distances follow the order in which tokens are read, line by line and image by image, so that
    every image keeps the same share, to one token.
    """

    keep: AmountLike = "50%"

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        visual = tokens.vision
        number, total = visual.long().cumsum(-1), tokens.visual_tokens[:, None]
        count = going_on(share(self.keep), tokens.visual_tokens)[:, None]
        total = total.clamp_min(1)  # a row without visual tokens marks none anyway
        return Pruned(visual & (number * count // total > (number - 1) * count // total))
