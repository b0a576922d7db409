"""VaSE: values of a large range, and a random sample of the rest by attention, all along an answer.

It was designed for long chains of thought. Where pairs of widely spread values are evicted, models
fall into loops; and of similar tokens it is better to keep different ones at random than the same
ones by rank. A quarter of the budget (``large``) goes to the first tokens and the widest values,
the last ``window`` tokens stay, and the rest is drawn without replacement, with the probabilities
of the window's attention. The cache is compressed after the prompt, and whenever ``every`` tokens
have been added.

Differences from the authors' code:

* The prompt is compressed at its end (there only once an answer has grown beyond the budget).
* Kept pairs stay in the order of the text (the release stores them in the order in which they were
  chosen, and pools along that).
* A layer is compressed again by the number of added tokens, where the release waits for multiples
  of ``window``.
* The draw follows from ``seed``, layer, head, position and the tokens seen.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.ops.window_attention import window_attention
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Kernel, Positive, Recent, Seed, Window
from foveate.stages import KeepsEnds, OverBudget, Uniform, highest
from foveate.stages.recent import is_recent, most_recent, recent_tokens
from foveate.stages.score.attention_free import gumbel
from foveate.stages.score.window import window_of

LEAST = 1e-30
"""Lowest probability: tokens without attention come last, and may still be drawn."""


@stage("attention_before", head_by_head=True)
class AttentionBefore:
    """Mean over the last ``window`` queries of the softmax over the tokens before them.

    It is averaged over ``kernel`` slots (zeros beyond the ends count) and over the query heads of a
    KV head; in float32. The window itself scores zero: selections protect it.

    Source: VaSE (arXiv:2606.03928), after the release.
    """

    window: Window = 64
    kernel: Kernel = 5

    def queries(self, tokens: int) -> int:
        return most_recent(self.window, tokens)

    def __call__(self, layer: Layer) -> Scores:
        observing = window_of(layer.slots, self.window)
        outside = layer.valid & ~is_recent(layer.slots, self.window)
        visible = outside[:, :, None] & observing[:, None, :, None]
        w = observing.shape[1]
        paid = window_attention(layer.q[:, :, -w:], layer.k, visible, layer.scale)
        mean = paid.mean(2).sum(2) / observing.sum(-1)[:, None, None]
        pooled = F.avg_pool1d(mean, self.kernel, stride=1, padding=self.kernel // 2)
        return Scores(pooled.masked_fill(~outside, 0.0))


@stage("large_and_drawn", head_by_head=True)
class LargeAndDrawn(KeepsEnds):
    """Selection of the widest values, and of a random sample of the rest.

    The first ``sinks`` and the last ``recent`` tokens are always kept. ``large`` is the number of
    slots (or the share of the budget) for the first tokens and the widest values together; a
    value's width is its highest channel less its lowest. The rest is drawn without replacement,
    with probabilities in proportion to the score; without ``sampled`` the highest scores are kept.

    Source: VaSE (arXiv:2606.03928), after the release.
    """

    recent: Recent = 64
    sinks: Count = 4
    large: Recent = 0.25
    sampled: bool = True
    seed: Seed = 0

    def __call__(self, scored: Scored, counts: Int[Tensor, "b h"]) -> Bool[Tensor, "b h n"]:
        values, v = scored.scores.values, scored.layer.v
        spread = v.amax(-1).float() - v.amin(-1).float()
        free, protected = values.isfinite(), values == torch.inf
        free_slots = counts - protected.sum(-1)
        wide = recent_tokens(self.large, scored.tokens)[:, None] - self.sinks
        largest = highest(
            spread.masked_fill(~free, -torch.inf), wide.clamp_min(0).minimum(free_slots)
        )
        left = free_slots - largest.sum(-1)
        order = self._drawn(scored) if self.sampled else values
        return protected | largest | highest(order.masked_fill(~free | largest, -torch.inf), left)

    def _drawn(self, scored: Scored) -> Float[Tensor, "b h n"]:
        """Return keys whose highest are a draw in proportion to the scores (Gumbel's trick)."""
        values, layer = scored.scores.values, scored.layer
        heads = torch.arange(values.shape[1], device=values.device)[None, :, None]
        seen = layer.lengths[:, None, None]
        noise = gumbel(self.seed, torch.full_like(heads, layer.ordinal), heads, layer.pos, seen)
        return values.clamp_min(LEAST).log() + noise


@method("chang2026vase", adds=("score", "select", "when"))
def vase(
    *,
    budget: Amount,
    window: Window = 64,
    kernel: Kernel = 5,
    large: Recent = 0.25,
    sinks: Count = 4,
    sampled: bool = True,
    every: Positive = 64,
    seed: Seed = 0,
) -> Policy:
    """Values of a large range, and a random draw of tokens that the newest tokens attend to.

    The cache is compressed while answering, too.

    Args:
        window: Last tokens, whose queries vote and which are always kept.
        large: Part of the budget, first tokens included, that goes to the widest values.
        sampled: Draw the rest in proportion to attention; otherwise keep the highest.

    Defaults:
        scripts of the release: 1,024 of 4,096 wide values, 64 recent tokens
    """
    return Policy(
        score=AttentionBefore(window=window, kernel=kernel),
        budget=Uniform(amount=budget),
        select=LargeAndDrawn(recent=window, sinks=sinks, large=large, sampled=sampled, seed=seed),
        when=OverBudget(every=every),
    )
