"""VNorm: values of high L2 norm, InfiniPot-V's value-norm score on its own.

InfiniPot-V itself adds temporal redundancy and runs while a long video is read; this is the score
that the papers compare with as VNorm, once after the prefill.
"""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Recent
from foveate.stages import TopK, Uniform, ValueNorm


@method("kim2025infinipotv")
def vnorm(*, budget: Amount, recent: Recent = 0) -> Policy:
    """Tokens whose values have the highest norms; needs no attention.

    Score: the L2 norm of the value (VaN).

    Defaults:
        no parameter in the paper
    """
    return Policy(score=ValueNorm(), budget=Uniform(amount=budget), select=TopK(recent=recent))
