"""NACL: tokens that the prompt's last tokens attend to, and a random sample of the others.

Differences from the authors' code: the random draw follows from ``seed`` and uses each KV head's
own query heads, where the release takes the scores of the first ones.
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
from foveate.stages.score.attention_rows import blocks, over_group
from foveate.stages.score.window import window_of


@stage("proxy_attention", head_by_head=True)
class ProxyAttention:
    """Sum over the last ``proxies`` queries of their softmax over *all* tokens, also later ones.

    It is reduced over the query heads of a KV head. ``proxies`` is a number or a share of the
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

        def paid(block: slice) -> Float[Tensor, "b h g n"]:
            visible = real & proxy[:, None, block, None]
            return window_attention(q[:, :, block], layer.k, visible, layer.scale).sum(3)

        return reduce(add, map(paid, blocks(proxy.shape[1])))


@stage("top_and_drawn")
class TopAndDrawn(KeepsEnds):
    """Selection of the highest scores and a random sample of the others.

    Beside the first ``sinks`` and the last ``recent`` tokens, a share ``drawn`` of the budget is
    drawn without replacement, with the probabilities softmax(score) of the tokens that are not
    among the best; the rest goes to the highest scores. The draw follows from ``seed``, layer, head
    and position.

    Source: NACL (arXiv:2408.03675), section 3.3.
    """

    drawn: Share = 0.37
    seed: Seed = 0
    recent: Recent = 0.05
    sinks: Count = 4

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, layer = scored.scores.values, scored.layer
        free, protected = values.isfinite(), values == torch.inf
        free_slots = counts - protected.sum(-1)
        draws = (free_slots.float() * self.drawn).long()
        best = highest(values.masked_fill(~free, -torch.inf), free_slots - draws)
        heads = torch.arange(values.shape[1], device=values.device)[None, :, None]
        noise = gumbel(self.seed, torch.full_like(heads, layer.ordinal), heads, layer.pos)
        lot = (values + noise).masked_fill(~free | best, -torch.inf)
        return protected | best | highest(lot, draws)


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
    """Tokens that the last tokens attend to, and a random share of the others.

    Sections 3.2 (scores) and 3.3 (sampling).

    Args:
        proxies: Last tokens, whose queries vote: a number, or a share of the budget.
        drawn: Share of the budget that is drawn at random, e.g. 0.37.

    Defaults:
        release, as shares of its 20 %: 1 % proxies and recent, 7 of 19 drawn; it has 256 sinks,
        which many budgets do not hold
    """
    return Policy(
        score=ProxyAttention(proxies=proxies, group=group),
        budget=Uniform(amount=budget),
        select=TopAndDrawn(drawn=drawn, seed=seed, recent=recent, sinks=sinks),
    )
