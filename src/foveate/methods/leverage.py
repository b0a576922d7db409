"""Leverage: keys that lie out, Compactor's first half on its own.

Departs from NVIDIA's kvpress: see the stage, and ``compactor``. Nothing is protected, as there.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Columns, Count, Seed
from foveate.stages import TopK, Uniform
from foveate.stages.score.held import Over
from foveate.stages.score.leverage import Leverage


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
    """Keeps the tokens whose keys have the highest leverage; needs no attention.

    Defaults:
        kvpress
    """
    return Policy(
        score=Leverage(sketch=sketch, sinks=sinks, recent=recent, over=over, seed=seed),
        budget=Uniform(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
