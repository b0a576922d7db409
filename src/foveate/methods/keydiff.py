"""KeyDiff: keys that differ from the rest; needs no attention."""

from __future__ import annotations

from foveate.policies.amount import Amount
from foveate.policies.method import method
from foveate.policies.parameters import Recent
from foveate.policies.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import KeyDifference
from foveate.stages.select import TopK


@method("park2025keydiff")
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
