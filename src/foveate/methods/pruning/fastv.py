"""FastV: after layer 2, an image is worth half of its tokens.

Before layer ``layer`` (counted from 0, so that ``layer`` layers have read all tokens) visual tokens
are ranked by the attention that the layer before pays them, averaged over its heads; the highest
share stays. The others are neither computed nor stored from there on.

The paper ranks by the attention of all tokens (``by="all"``), its code by that of the last one.
Where the release drops tokens in place they keep their positions, as here; its variant with a cache
counts the positions of an answer from the number of remaining tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from foveate.policies.amount import AmountLike
from foveate.policies.parameters import Positive
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, number_going_on, share, share_or_auto
from foveate.stages.pruning_bases import highest_visual
from foveate.stages.score.by_position import By, received


@prunes("fastv")
class FastVPrune:
    """Visual tokens that received the most attention in the layer before ``layer``.

    A prompt in chunks is pruned chunk by chunk, each by its own last query.

    Source: FastV (arXiv:2403.06764), section 4.1 and the release.
    """

    layer: Positive = 2
    keep: AmountLike = "50%"
    by: By = "last"

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", share_or_auto(self.keep))

    def layers(self, depth: int) -> tuple[int, ...]:
        return (self.layer,)

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        return (number_going_on(share(self.keep), sum(images)),)

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        paid = received(tokens.attended(), self.by).mean(1)[:, -tokens.pos.shape[1] :]
        return highest_visual(tokens, paid, share(self.keep))
