"""VL-Cache: tokens that the text after the last image attends to, with more in dense layers.

Difference from the paper: scores stay per KV head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Recent, Share, ShareBetween
from foveate.stages import LayerShares, Reduction, TopK
from foveate.stages.score.attention_rows import over_group, rows, seen


@stage("after_vision", head_by_head=True)
class AfterVision:
    """Sum over the queries after the last visual token of their softmax.

    It covers at least the last query, and is reduced over the query heads of a KV head. The note
    "density" [b] is the share of these rows' visible entries that reach ``threshold`` of their
    row's highest.

    Source: VL-Cache (arXiv:2410.23317), sections 4.1 and 4.2.
    """

    threshold: ShareBetween = 0.01
    group: Reduction = "mean"

    def queries(self, tokens: int) -> int:
        return 2**31  # all: the length of the text after the last image is not known in advance

    def __call__(self, layer: Layer) -> Scores:
        queries = _after_the_last_image(layer)
        first = int(queries.long().argmax(-1).min())
        tail = replace(layer, q=layer.q[:, :, first:], slots=layer.slots.from_query(first))
        queries = queries[:, first:]
        sums = dense = entries = layer.k.new_zeros((), dtype=torch.float32)
        for block, paid in rows(tail):
            paid = paid * queries[:, None, None, block, None]
            entries = entries + (seen(tail, block) & queries[:, None, block, None]).sum((2, 3))
            sums = sums + paid.sum(3)
            high = paid.amax(-1, keepdim=True)
            dense = dense + ((paid >= self.threshold * high) & (high > 0)).float().sum((3, 4))
        density = dense.mean((1, 2)) / entries.float().mean(1).clamp_min(1)
        return Scores(over_group(sums, self.group), notes={"density": density})


def _after_the_last_image(layer: Layer) -> Bool[Tensor, "b m"]:
    """Mark queries that no visual token follows, and always the last query."""
    visual = layer.q_vision.long()
    later = visual.flip(1).cumsum(1).flip(1)
    after = (later == 0) & (layer.q_pos >= 0)
    after[:, -1] = True
    return after


@method("tu2025vlcache", adds=("score", "budget"))
def vl_cache(
    *,
    budget: Amount,
    recent: Recent = 0.1,
    threshold: ShareBetween = 0.01,
    group: Reduction = "mean",
    even: Share = 0.0,
) -> Policy:
    """Tokens that the text after the images attends to, with more in densely attending layers.

    Sections 4.1 and 4.2.

    Args:
        threshold: Share of a row's highest attention from which an entry counts, e.g. 0.01.
        even: Part of the budget that all layers share alike.

    Defaults:
        paper: 1 % and 10 %
    """
    return Policy(
        score=AfterVision(threshold=threshold, group=group),
        budget=LayerShares(amount=budget, of="density", even=even),
        select=TopK(recent=recent),
    )
