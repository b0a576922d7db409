"""Full cache: every pair of the prompt is kept. The reference that others are compared with."""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.stages import Recency, TopK, Uniform


@method()
def full() -> Policy:
    """Keeps everything; nothing is scored, and the cache is preallocated for decoding."""
    return Policy(score=Recency(), budget=Uniform(amount=Amount.of(1.0)), select=TopK())
