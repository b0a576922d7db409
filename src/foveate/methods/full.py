"""Full cache: every pair of the prompt is kept. The reference that others are compared with."""

from __future__ import annotations

from foveate.policies.amount import Amount
from foveate.policies.method import method
from foveate.policies.policy import Policy
from foveate.stages.budget import Uniform
from foveate.stages.score import Recency
from foveate.stages.select import TopK


@method()
def full() -> Policy:
    """Keeps everything; nothing is scored, and the cache is preallocated for decoding."""
    return Policy(score=Recency(), budget=Uniform(amount=Amount.of(1.0)), select=TopK())
