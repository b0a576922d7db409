"""FastV: after layer 2, an image is worth half of its tokens.

The paper drops visual tokens from the computation of all layers after the `layers`-th while the
prompt is read; it is no cache policy. This is what it leaves in the cache, read as one: the first
`layers` keep everything, all later ones keep text and the same visual tokens, which the last query
of the prompt attends to most in the last of those layers. So it saves memory and no prefill, and
what leaves the cache of a layer has been seen by the layers after it. `fastv.prune(layer=2)` in
front of a method drops tokens as the paper does, and saves prefill.

The budget is exact over all layers, so the first ones keep everything only as far as it allows:
every later layer has at least `least` of the average. Where text does not fit, it is ranked as
visual tokens are.

The paper ranks by the attention from all tokens (`by="all"`), its code by that of the last one.
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
from foveate.stages.score.one_ranking import By, by_position, of_slots, received


@stage("ranked_at_layer")
class RankedAtLayer:
    """One ranking for all layers after the ``layers``-th: what tokens are paid there, the mean over
    all heads. Layers before it have their own. The note "received" is the same by position.

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
    """The first ``layers`` keep everything, all others share the rest evenly; but each of these has
    at least ``least`` of the average, and the first ones less, where the budget asks for it.
    """

    layers: Positive = 2
    least: Share = 0.25
    scope: Scope = field(default="layer", init=False)

    def by_length(self, depth: int) -> WholeFirst:
        """The counts of that many layers."""
        return WholeFirst(depth, self.layers, self.least)


class WholeFirst(NamedTuple):
    """The counts of every layer."""

    depth: int
    layers: int
    least: float

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Of a prompt of ``length``, ``tokens`` on average."""
        first = min(self.layers, self.depth)
        if first == self.depth or tokens >= length:
            return (min(tokens, length),) * self.depth
        floor = max(int(tokens * Fraction(str(self.least))), min(protected, tokens))
        rest, total = self.depth - first, tokens * self.depth
        whole = min(first * length, total - rest * floor)
        return (*_evenly(whole, first), *_evenly(total - whole, rest))


def _evenly(total: int, places: int) -> tuple[int, ...]:
    """The remainder goes to the earlier ones."""
    each, over = divmod(total, places)
    return tuple(each + (place < over) for place in range(places))


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
    """Keeps the first layers whole, and later on text and what was looked at in the last of these.

    ``layers`` is K, after which visual tokens are dropped.

    Args:
        layers: The first layers, which keep everything.
        by: Whose attention ranks visual tokens: the last token's, or all tokens'.
        least: The least that each later layer keeps, as a share of the average.

    Defaults:
        K = 2: the paper; `by`: the release; `least`, `recent`: here
    """
    return Policy(
        score=TextPrior(of=RankedAtLayer(layers=layers, by=by)),
        budget=FirstLayersWhole(amount=budget, layers=layers, least=least),
        select=TopK(recent=recent, protect_text=protect_text),
    )
