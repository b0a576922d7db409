"""KeyDiff: keys that differ from the rest; needs no attention."""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Recent
from foveate.stages import KeyDifference, TopK, Uniform


@method("park2025keydiff")
def keydiff(
    *,
    budget: Amount,
    recent: Recent = 0,
) -> Policy:
    """Tokens whose keys differ most from the mean key; needs no attention.

    Score: minus the cosine of a key and the mean of all keys' directions (section 3).

    Defaults:
        no parameter in the paper
    """
    return Policy(score=KeyDifference(), budget=Uniform(amount=budget), select=TopK(recent=recent))
