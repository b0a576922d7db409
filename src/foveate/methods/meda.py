"""MEDA: larger budgets for layers whose attention is spread out; text first, the rest merges.

``entropy`` "all" is the entropy that the authors' code uses; "cross" is the paper's cross-modal
one, which the code has and never calls. Differences from the code: the total is exact, where the
code clamps the layers' shares without compensating for it; pairs merge at the end of the prefill,
not in the first decoding step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.ops.window_attention import window_attention
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Recent, Share
from foveate.policies.protocols import Score
from foveate.stages import ColumnSums, LayerShares, MergeNearest, TextPrior, TopK
from foveate.stages.score.attention_rows import blocks, seen


@stage("attention_entropy")
class AttentionEntropy:
    """Another score, with a note "entropy" [b]: the entropy of attention rows, averaged over heads.

    It is in nats per query. ``kind`` "all" takes the causal rows over all tokens, as the authors'
    code does. "cross", the paper's cross-modal entropy, adds the means of two parts, each with its
    own softmax: text queries over all visual tokens, and visual queries over all text tokens, later
    ones included.

    Source: MEDA (arXiv:2502.17599), section 3.2, and the release.
    """

    of: Score
    kind: Literal["all", "cross"] = "all"

    def queries(self, tokens: int) -> int:
        return 2**31  # all of them

    def __call__(self, layer: Layer) -> Scores:
        scores = self.of(layer)
        if self.kind == "all":
            entropy = _mean_entropy(layer, partial(seen, layer))
        else:
            image, text = (
                layer.valid[:, :1, None] & kind[:, :1, None]
                for kind in (layer.vision, ~layer.vision)
            )
            real = (layer.q_pos >= 0)[:, None, :, None]
            visual_queries = layer.q_vision[:, None, :, None]
            entropy = _mean_entropy(layer, _between(~visual_queries & real, image))
            entropy = entropy + _mean_entropy(layer, _between(visual_queries & real, text))
        return scores._replace(notes={**scores.notes, "entropy": entropy})


Visible = Callable[[slice], Bool[Tensor, "b #h r n"]]
"""Function from a block of queries to the mask of the slots that they see."""


def _between(queries: Bool[Tensor, "b 1 m 1"], slots: Bool[Tensor, "b 1 1 n"]) -> Visible:
    return lambda block: queries[:, :, block] & slots


def _mean_entropy(layer: Layer, visible: Visible) -> Float[Tensor, "b"]:
    """Return the mean entropy of queries that see anything, each over the slots that it sees."""
    total = layer.k.new_zeros(layer.q.shape[0], dtype=torch.float32)
    query_count = torch.zeros_like(total)
    for block in blocks(layer.q.shape[2]):
        mask = visible(block)
        paid = window_attention(layer.q[:, :, block], layer.k, mask, layer.scale)
        total -= torch.xlogy(paid, paid).sum((3, 4)).mean((1, 2))
        query_count += mask.any(-1)[:, 0].sum(-1)
    return total / query_count.clamp_min(1)


@method("wan2025meda", adds=("score", "budget", "merge"))
def meda(
    *,
    budget: Amount,
    recent: Recent = 0.5,
    entropy: Literal["all", "cross"] = "all",
    even: Share = 0.0,
) -> Policy:
    """Text first and the most attended tokens, with more in layers of high attention entropy.

    Layers share the budget by the softmax of their entropy (section 3.2).

    Args:
        entropy: Entropy of all attention, or of that across modalities.
        even: Part of the budget that all layers share alike.

    Defaults:
        half of the budget: the release's `hh_ratio` = `recent_ratio`; `entropy`: the release
    """
    return Policy(
        score=AttentionEntropy(of=TextPrior(of=ColumnSums()), kind=entropy),
        budget=LayerShares(amount=budget, of="entropy", how="softmax", even=even),
        select=TopK(recent=recent),
        merge=MergeNearest(how="pivotal"),
    )
