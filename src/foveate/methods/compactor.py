"""Compactor: keys of high leverage, and tokens that queries of their own part attend to.

Scores are those of NVIDIA's kvpress. Differences from it:

* Leverage is that of keys after RoPE, which layers store; theirs is before RoPE.
* The random sketch follows from ``seed`` and is the same for all heads of a layer.
* Scores are standardised within each row, not over the whole batch.
* A last part that is shorter attends to its own tokens alone (``as_released``: as in kvpress).

By default leverage is weighted by the share that is evicted, as in kvpress. The authors' own engine
weights it by 0.5 (``blending``), with parts of 128 tokens and neither value norms nor pooling.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Columns, Count, Factor, Positive, Seed
from foveate.stages import TopK, Uniform
from foveate.stages.score.leverage import Leverage
from foveate.stages.score.non_causal import NonCausalAttention
from foveate.stages.score.token_span import Over


@stage("leverage_and_attention")
class LeverageAndAttention:
    """Weighted sum of the scores ``leverage`` and ``non_causal_attention``.

    ``blending`` is the weight of leverage; by default the share of the row that is evicted.

    Source: Compactor (arXiv:2507.08143), and kvpress.
    """

    blending: Factor | None = None
    sketch: Columns | None = 48
    chunk: Positive = 256
    sinks: Count = 8
    recent: Count = 4
    over: Over = "layer"
    as_released: bool = False
    seed: Seed = 0

    @property
    def head_by_head(self) -> bool:
        return self.over == "head"

    def queries(self, tokens: int) -> int:
        return self._attention.queries(tokens)

    @property
    def _attention(self) -> NonCausalAttention:
        return NonCausalAttention(chunk=self.chunk, as_released=self.as_released, **self._both)

    @property
    def _both(self) -> dict[str, Any]:
        return {"sinks": self.sinks, "recent": self.recent, "over": self.over}

    def __call__(self, layer: Layer) -> Scores:
        leverage = Leverage(sketch=self.sketch, seed=self.seed, **self._both)
        outlying, paid = leverage(layer).values, self._attention(layer).values
        return Scores(self._weight(layer) * outlying + paid)

    def _weight(self, layer: Layer) -> float | Float[Tensor, "b 1 1"]:
        if self.blending is not None:
            return self.blending
        tokens, lengths = layer.slots.tokens, layer.lengths
        if tokens is None:
            raise InvalidParameter(
                "blending=null is the share that the budget evicts, and this layer has no budget: "
                "give Slots(tokens=...), or blending as a number."
            )
        return (1 - tokens.float() / lengths).clamp_min(0.0)[:, None, None]


@method("chari2025compactor")
def compactor(
    *,
    budget: Amount,
    blending: Factor | None = None,
    sketch: Columns | None = 48,
    chunk: Positive = 256,
    sinks: Count = 8,
    recent: Count = 4,
    over: Over = "layer",
    as_released: bool = False,
    seed: Seed = 0,
) -> Policy:
    """Tokens with keys of high leverage, and tokens that queries before and after them attend to.

    Score: blending * leverage + non-causal attention.

    Args:
        blending: Weight of leverage relative to attention; null: the share that is evicted.

    Defaults:
        kvpress; the authors' own engine blends by 0.5
    """
    return Policy(
        score=LeverageAndAttention(
            blending=blending,
            sketch=sketch,
            chunk=chunk,
            sinks=sinks,
            recent=recent,
            over=over,
            as_released=as_released,
            seed=seed,
        ),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
