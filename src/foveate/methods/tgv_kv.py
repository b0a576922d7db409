"""TGV-KV: visual tokens that important text attends to; more for layers in which text looks.

Departs from the authors' code in the total, which is exact; in several images, which the release
takes for one; in batches, over which it averages; and in decoding, where it drops the visual token
that the newest query attends to least.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Share
from foveate.stages import LayerShares, TopK
from foveate.stages.score.rows import rows


@stage("text_guided")
class TextGuided:
    """One ranking for the layer, of attention averaged over its heads. A text token weighs what
    text queries pay it on average; a visual token's score is the sum over text queries of what each
    pays it, times that query's weight. Text stands before all visual tokens. The note "mass" [b] is
    what text queries pay to visual tokens in all.

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
    """What every slot receives from the queries, each times its weight."""
    b, _, n = layer.pos.shape
    total = layer.k.new_zeros(b, n, dtype=torch.float32)
    for some, paid in rows(layer):
        total += (paid.mean((1, 2)) * weights[:, some, None]).sum(1)
    return total


@method("liu2026tgvkv", adds=("score", "budget"))
def tgv_kv(
    *,
    budget: Amount,
    sinks: Count = 4,
    recent: Count = 1,
    even: Share = 0.0,
) -> Policy:
    """Keeps text first, and the visual tokens that the important text attends to.

    Args:
        even: The part of the budget that all layers share alike.

    Defaults:
        release
    """
    return Policy(
        score=TextGuided(),
        budget=LayerShares(amount=budget, of="mass", even=even),
        select=TopK(sinks=sinks, recent=recent),
    )
