"""KeyDiff: keys that differ from the rest; needs no attention."""

from __future__ import annotations

from foveate.policies.amount import Amount
from foveate.policies.method import Paper, method
from foveate.policies.parameters import Recent
from foveate.policies.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import KeyDifference
from foveate.stages.select import TopK


@method(
    Paper(
        title="KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in "
        "Resource-Constrained Environments",
        authors=(
            "Park, Junyoung",
            "Jones, Dalton",
            "Morse, Matthew J.",
            "Goel, Raghavv",
            "Lee, Mingu",
            "Lott, Chris",
        ),
        year=2025,
        venue="Advances in Neural Information Processing Systems",
        key="park2025keydiff",
        arxiv="2504.15364",
    ),
)
def keydiff(
    *,
    budget: Amount,
    recent: Recent = 0,
) -> Policy:
    """Keeps the tokens whose keys differ most from the mean key; needs no attention.

    Defaults:
        no parameter in the paper
    """
    return Policy(score=KeyDifference(), budget=Uniform(amount=budget), select=TopK(recent=recent))
