"""Novelty: a method of one's own. Keeps the tokens whose values are unlike those just before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from foveate.cache.layer import Layer, Scores
from foveate.policies.amount import Amount
from foveate.policies.method import method
from foveate.policies.parameters import Recent
from foveate.policies.policy import Policy
from foveate.policies.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK


@stage("novelty")
@dataclass(frozen=True, kw_only=True)
class Novelty:
    """The L2 distance of a value to that of the slot before, in float32; the first slot's is its
    own length.
    """

    head_by_head: ClassVar[bool] = True  # what it says of a head follows from that head alone

    def queries(self, tokens: int) -> int:
        """Return 0: it reads no attention."""
        return 0

    def __call__(self, layer: Layer) -> Scores:
        """Return a score for each slot, [b h n]; high is important."""
        values = layer.v.float() * layer.valid[..., None]  # padding counts as nothing
        change = values.clone()
        change[:, :, 1:] -= values[:, :, :-1]
        return Scores(change.norm(dim=-1))


@method()
def novelty(*, budget: Amount, recent: Recent = 16) -> Policy:
    """Tokens whose values differ from those just before, and the last `recent`."""
    return Policy(score=Novelty(), budget=Uniform(amount=budget), select=TopK(recent=recent))
