"""NACL: what the prompt's last tokens attend to, and some others by lot.

Departs from the authors' code: the lot follows from ``seed`` and is drawn per KV head with the
scores of its own query heads, where the release takes those of the first ones.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.ops.window_attention import window_attention
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Recent, Seed, Share, Window
from foveate.stages import KeepsEnds, Reduction, Uniform, highest
from foveate.stages.recent import most_recent
from foveate.stages.score.attention_free import gumbel
from foveate.stages.score.rows import blocks, over_group
from foveate.stages.score.window import window_of


@stage("proxy_attention", head_by_head=True)
class ProxyAttention:
    """Sum over the last ``proxies`` queries of their softmax over *all* tokens, later ones
    included, reduced over the query heads of a KV head. ``proxies`` is a number or a share of the
    budget.

    Source: NACL (arXiv:2408.03675), section 3.2.
    """

    proxies: Window = 0.05
    group: Reduction = "mean"

    def queries(self, tokens: int) -> int:
        return most_recent(self.proxies, tokens)

    def __call__(self, layer: Layer) -> Scores:
        return Scores(over_group(self._sums(layer), self.group))

    def _sums(self, layer: Layer) -> Float[Tensor, "b h g n"]:
        proxy = window_of(layer.slots, self.proxies)
        q, real = layer.q[:, :, -proxy.shape[1] :], layer.valid[:, :1, None]

        def paid(some: slice) -> Float[Tensor, "b h g n"]:
            visible = real & proxy[:, None, some, None]
            return window_attention(q[:, :, some], layer.k, visible, layer.scale).sum(3)

        return reduce(add, map(paid, blocks(proxy.shape[1])))


@stage("top_and_drawn")
class TopAndDrawn(KeepsEnds):
    """Beside the first ``sinks`` and the last ``recent`` tokens: of the places that are left, a
    share ``drawn`` goes by lot, without replacement, with the probabilities softmax(score) of what
    is not among the best, and all others go to the highest scores.

    A token's lot follows from ``seed``, layer, head and its position.

    Source: NACL (arXiv:2408.03675), section 3.3.
    """

    drawn: Share = 0.37
    seed: Seed = 0
    recent: Recent = 0.05
    sinks: Count = 4

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, layer = scored.scores.values, scored.layer
        free, protected = values.isfinite(), values == torch.inf
        places = counts - protected.sum(-1)
        lots = (places.float() * self.drawn).long()
        best = highest(values.masked_fill(~free, -torch.inf), places - lots)
        heads = torch.arange(values.shape[1], device=values.device)[None, :, None]
        noise = gumbel(self.seed, torch.full_like(heads, layer.ordinal), heads, layer.pos)
        lot = (values + noise).masked_fill(~free | best, -torch.inf)
        return protected | best | highest(lot, lots)


@method("chen2024nacl")
def nacl(
    *,
    budget: Amount,
    proxies: Window = 0.05,
    drawn: Share = 0.37,
    recent: Recent = 0.05,
    sinks: Count = 4,
    seed: Seed = 0,
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last tokens attend to, and a share of the others by lot.

    Args:
        proxies: The last tokens, whose queries vote: a number, or a share of the budget.
        drawn: Share of the places that goes by lot.

    Defaults:
        release, as shares of its 20 %: 1 % proxies and recent, 7 of 19 drawn; it has 256 sinks,
        which many budgets do not hold
    """
    return Policy(
        score=ProxyAttention(proxies=proxies, group=group),
        budget=Uniform(amount=budget),
        select=TopAndDrawn(drawn=drawn, seed=seed, recent=recent, sinks=sinks),
    )
