"""FastV: after layer 2, an image is worth half of its tokens.

The paper drops visual tokens from the computation of all layers after layer `layers` during the
prefill; it is no cache policy. Here the cache that this leaves is the policy: the first `layers`
layers keep everything, all later ones keep text and the same visual tokens, chosen by the attention
of the prompt's last query in the last of those layers. It saves memory but no prefill, and later
layers have seen the tokens that leave a layer's cache. `fastv.prune(layer=2)` in front of a method
drops tokens before they are computed, as the paper does.

The budget is exact over all layers, so the first ones keep everything only as far as it allows:
every later layer has at least `least` of the average. Text that does not fit is ranked like visual
tokens.

The paper ranks by the attention of all tokens (`by="all"`), its code by that of the last token.
"""

from __future__ import annotations

from dataclasses import field
from fractions import Fraction
from typing import NamedTuple

from foveate.cache.layer import Layer, Scores
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Positive, Recent, Share
from foveate.policies.protocols import Scope
from foveate.stages import TextPrior, TopK
from foveate.stages.budget.bases import ByLength
from foveate.stages.score.by_position import By, by_position, of_slots, received


@stage("ranked_at_layer")
class RankedAtLayer:
    """One ranking for all layers after layer ``layers``, by the attention received there.

    It is averaged over all heads. Layers before it have their own ranking. The note "received" is
    the ranking by position.
    Source: FastV (arXiv:2403.06764), section 4.1 and the release.
    """

    layers: Positive = 2
    by: By = "last"

    def queries(self, tokens: int) -> int:
        return 1 if self.by == "last" else 2**31

    def __call__(self, layer: Layer) -> Scores:
        ranked = min(self.layers, layer.depth) - 1
        if layer.ordinal > ranked:
            sums = layer.earlier[ranked]["received"]
        else:
            sums = by_position(layer, received(layer, self.by))
        return Scores(of_slots(layer, sums), notes={"received": sums})


@stage("first_layers_whole")
class FirstLayersWhole(ByLength):
    """Budget that keeps everything in the first ``layers`` and shares the rest evenly.

    Each later layer has at least ``least`` of the average; where the budget needs it, the first
    layers keep less.
    """

    layers: Positive = 2
    least: Share = 0.25
    scope: Scope = field(default="layer", init=False)

    def by_length(self, depth: int) -> WholeFirst:
        """Return the rule for ``depth`` layers."""
        return WholeFirst(depth, self.layers, self.least)


class WholeFirst(NamedTuple):
    """Rule of :class:`FirstLayersWhole` for a number of layers; hashable."""

    depth: int
    layers: int
    least: float

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Return each layer's tokens for a prompt of ``length``, ``tokens`` on average."""
        first = min(self.layers, self.depth)
        if first == self.depth or tokens >= length:
            return (min(tokens, length),) * self.depth
        floor = max(int(tokens * Fraction(str(self.least))), min(protected, tokens))
        rest, total = self.depth - first, tokens * self.depth
        first_total = min(first * length, total - rest * floor)
        return (*_evenly(first_total, first), *_evenly(total - first_total, rest))


def _evenly(total: int, parts: int) -> tuple[int, ...]:
    """Split ``total`` into ``parts`` near-equal numbers; earlier parts get the remainder."""
    share, remainder = divmod(total, parts)
    return tuple(share + (part < remainder) for part in range(parts))


@method("chen2024fastv", adds=("score", "budget"))
def fastv(
    *,
    budget: Amount,
    layers: Positive = 2,
    by: By = "last",
    least: Share = 0.25,
    recent: Recent = 1,
    protect_text: bool = False,
) -> Policy:
    """All tokens in the first layers; after them text and the most attended visual tokens.

    ``layers`` is K, the layer after which visual tokens are dropped (section 4.1).

    Args:
        layers: The first layers, which keep everything.
        by: Queries whose attention ranks visual tokens: the last token's, or all tokens'.
        least: The least that each later layer keeps, as a share of the average.

    Defaults:
        K = 2: the paper; `by`: the release; `least`, `recent`: here
    """
    return Policy(
        score=TextPrior(of=RankedAtLayer(layers=layers, by=by)),
        budget=FirstLayersWhole(amount=budget, layers=layers, least=least),
        select=TopK(recent=recent, protect_text=protect_text),
    )
