"""KNorm: keys of low L2 norm, which tend to receive much attention.

Differences from the authors' code: no layers are skipped by default, and the budget is met exactly
(the release rounds up). Nothing is protected, as in the release.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Recent
from foveate.stages import KeyNorm, TopK, Uniform


@method("devoto2024knorm")
def knorm(*, budget: Amount, recent: Recent = 0) -> Policy:
    """Tokens whose keys have the lowest norms; needs no attention.

    Score: minus the L2 norm of the key (section 3).

    Defaults:
        no parameter in the paper; the release leaves layers 0 and 1 whole
    """
    return Policy(score=KeyNorm(), budget=Uniform(amount=budget), select=TopK(recent=recent))
