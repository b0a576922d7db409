"""Random tokens: the baseline that every method has to beat."""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Recent, Seed
from foveate.stages import RandomScore, TopK, Uniform


@method()
def random(*, budget: Amount, seed: Seed = 0, recent: Recent = 0) -> Policy:
    """Tokens drawn at random per layer and KV head, and optionally the last `recent` tokens."""
    return Policy(
        score=RandomScore(seed=seed), budget=Uniform(amount=budget), select=TopK(recent=recent)
    )
