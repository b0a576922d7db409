"""PyramidDrop: half of the visual tokens, then a quarter, then an eighth.

The layers are cut into ``stages`` equal parts. Before the first layer of every part but the first,
the remaining visual tokens are ranked by the attention of the last query, averaged over heads, and
``ratio`` times the number of the part before stay. The release recomputes that attention from the
states that are about to enter the part; here it is the attention of the layer before, which is
already computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from foveate.policies.parameters import Positive, ShareBetween
from foveate.policies.prunes import prunes
from foveate.policies.pruning import EnteringTokens, Pruned, number_going_on, share
from foveate.stages.pruning_bases import highest_visual
from foveate.stages.score.by_position import paid_by_last


@prunes("pyramiddrop")
class PyramidDropPrune:
    """Visual tokens that the last query attends to, fewer in each part of the layers.

    A prompt in chunks is pruned chunk by chunk, each by its own last query.

    Source: PyramidDrop (arXiv:2410.17247), section 3.2 and the release.
    """

    stages: Positive = 4
    ratio: ShareBetween = 0.5

    def layers(self, depth: int) -> tuple[int, ...]:
        """Return the first layer of each part but the first; fewer where a model has few layers."""
        return tuple(sorted({part * depth // self.stages for part in range(1, self.stages)} - {0}))

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]:
        parts = range(1, len(self.layers(depth)) + 1)
        return tuple(number_going_on(share(self.ratio**part), sum(images)) for part in parts)

    def __call__(self, tokens: EnteringTokens) -> Pruned:
        paid = paid_by_last(tokens.attended()).mean(1)[:, -tokens.pos.shape[1] :]
        part = self.layers(tokens.depth).index(tokens.layer) + 1
        return highest_visual(tokens, paid, share(self.ratio**part))
