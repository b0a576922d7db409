"""Observing a model while it reads and answers, with everything kept."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from foveate.cache.layer import Layer, Scores
from foveate.policies.policy import Policy
from foveate.policies.protocols import Moment, Score
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK


class Observer:
    """A score that ranks nothing: what it is for is its ``observe``."""

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.k.new_zeros(layer.k.shape[:3], dtype=torch.float32))


@dataclass(frozen=True)
class Never:
    """At no moment. With ``decodes`` the score observes each token of the answer, too."""

    decodes: bool = False
    reads: bool = field(default=False, init=False)

    def __call__(self, moment: Moment) -> bool:
        return False


def observing(score: Score, *, decodes: bool) -> Policy:
    """The policy under which the score sees every layer, and nothing is compressed."""
    return Policy(score=score, budget=Uniform(amount=1), select=TopK(), when=Never(decodes=decodes))
