"""Leverage: outlying keys, the first half of Compactor on its own.

Differences from NVIDIA's kvpress are listed at the stage and at ``compactor``. Nothing is
protected, as in kvpress.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Columns, Count, Seed
from foveate.stages import TopK, Uniform
from foveate.stages.score.leverage import Leverage
from foveate.stages.score.token_span import Over


@method("chari2025compactor")
def leverage(
    *,
    budget: Amount,
    sketch: Columns | None = 48,
    sinks: Count = 0,
    recent: Count = 0,
    over: Over = "layer",
    seed: Seed = 0,
) -> Policy:
    """Tokens whose keys have the highest statistical leverage; needs no attention.

    Score: the diagonal of X (X^T X + I/100)^-1 X^T, where X are the head's centred keys times a
    random sketch.

    Defaults:
        kvpress
    """
    return Policy(
        score=Leverage(sketch=sketch, sinks=sinks, recent=recent, over=over, seed=seed),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
