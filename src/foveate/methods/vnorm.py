"""VNorm: values of high L2 norm, InfiniPot-V's value-norm score on its own.

InfiniPot-V itself adds temporal redundancy and works while a long video is read; this is the score
that the papers compare with as VNorm, once after the prefill.
"""

from __future__ import annotations

from foveate.policies.amount import Amount
from foveate.policies.method import Paper, method
from foveate.policies.parameters import Recent
from foveate.policies.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import ValueNorm
from foveate.stages.select import TopK


@method(
    Paper(
        title="InfiniPot-V: Memory-Constrained KV Cache Compression for Streaming Video "
        "Understanding",
        authors=("Kim, Minsoo", "Shim, Kyuhong", "Choi, Jungwook", "Chang, Simyung"),
        year=2025,
        venue="Advances in Neural Information Processing Systems",
        key="kim2025infinipotv",
        arxiv="2506.15745",
        code="https://github.com/aiha-lab/InfiniPot-V",
    )
)
def vnorm(*, budget: Amount, recent: Recent = 0) -> Policy:
    """Keeps the tokens whose values have the highest norms; needs no attention.

    Defaults:
        no parameter in the paper
    """
    return Policy(score=ValueNorm(), budget=Uniform(amount=budget), select=TopK(recent=recent))
