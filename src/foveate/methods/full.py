"""Full cache: every pair of the prompt is kept. The reference for all other methods."""

from __future__ import annotations

from foveate.policies.method import Amount, Policy, method
from foveate.stages import Recency, TopK, Uniform


@method()
def full() -> Policy:
    """All pairs of the prompt, unscored, in a cache preallocated for decoding."""
    return Policy(score=Recency(), budget=Uniform(amount=Amount.of(1.0)), select=TopK())
