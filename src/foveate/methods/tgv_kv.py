"""TGV-KV: visual tokens that important text attends to, with more where text attends more.

Differences from the authors' code: the total is exact; several images are supported, which the
release takes for one; batches are compressed row by row, where the release averages over them; and
nothing is evicted while decoding, where the release drops the visual token that the newest query
attends to least.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Share
from foveate.stages import LayerShares, TopK
from foveate.stages.score.attention_rows import rows


@stage("text_guided")
class TextGuided:
    """One ranking for the layer, by attention averaged over its heads and guided by text.

    A text token's weight is the attention that text queries pay it on average. A visual token's
    score is the sum over text queries of the attention that each pays it, times that query's
    weight. Text comes before all visual tokens. The note "mass" [b] is the total attention of text
    queries to visual tokens.

    Source: TGV-KV (arXiv:2606.03075), its release (``kv_caches/tgv_kv.py``).
    """

    def queries(self, tokens: int) -> int:
        return 2**31  # all text queries

    def __call__(self, layer: Layer) -> Scores:
        by_text = (~layer.q_vision & (layer.q_pos >= 0)).float()
        visual = (layer.vision & layer.valid)[:, 0]
        text = (layer.valid[:, 0] & ~visual).float()
        received = _sums(layer, by_text)
        weight = received * text / by_text.sum(-1, keepdim=True).clamp_min(1)
        own = torch.searchsorted(layer.pos[:, 0].contiguous(), layer.q_pos.contiguous())
        of_query = weight.gather(1, own.clamp_max(weight.shape[1] - 1)) * by_text
        guided = _sums(layer, of_query)
        values = torch.where(visual, guided, weight + 100.0)
        mass = (received * visual).sum(-1)
        shared = values[:, None].expand(layer.pos.shape)
        return Scores(shared, notes={"mass": mass})


def _sums(layer: Layer, weights: Float[Tensor, "b m"]) -> Float[Tensor, "b n"]:
    """Sum the attention of all queries to each slot, each query times its weight."""
    b, _, n = layer.pos.shape
    total = layer.k.new_zeros(b, n, dtype=torch.float32)
    for block, paid in rows(layer):
        total += (paid.mean((1, 2)) * weights[:, block, None]).sum(1)
    return total


@method("liu2026tgvkv", adds=("score", "budget"))
def tgv_kv(
    *,
    budget: Amount,
    sinks: Count = 4,
    recent: Count = 1,
    even: Share = 0.0,
) -> Policy:
    """Text first, then visual tokens that important text attends to.

    Args:
        even: Part of the budget that all layers share alike.

    Defaults:
        release
    """
    return Policy(
        score=TextGuided(),
        budget=LayerShares(amount=budget, of="mass", even=even),
        select=TopK(sinks=sinks, recent=recent),
    )
