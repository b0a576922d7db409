"""Random: the floor that every method has to beat."""

from __future__ import annotations

from foveate.policies.amount import Amount
from foveate.policies.method import method
from foveate.policies.parameters import Recent, Seed
from foveate.policies.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import RandomScore
from foveate.stages.select import TopK


@method()
def random(*, budget: Amount, seed: Seed = 0, recent: Recent = 0) -> Policy:
    """Keeps tokens drawn at random per layer and KV head, and optionally the last `recent`."""
    return Policy(
        score=RandomScore(seed=seed), budget=Uniform(amount=budget), select=TopK(recent=recent)
    )
