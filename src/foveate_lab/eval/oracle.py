"""Oracle policy: an upper bound that keeps the tokens which show the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foveate.cache.layer import Layer, Scores
from foveate.policies.amount import AmountLike
from foveate.policies.policy import Policy
from foveate.policies.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK

NAME = "oracle"
ENDS = 4  # tokens at each end of the prompt; its first tokens are attention sinks


@stage("evidence")
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Score that ranks both ends of each row's prompt first, then evidence, then late tokens.

    ``places``: evidence tokens of each row, ranked from first to last. The rest is ranked from last
    to first.
    """

    places: tuple[tuple[int, ...], ...]

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        last = layer.lengths[:, None, None] - 1
        later = layer.pos.float() / (last + 1)
        is_evidence = [
            torch.isin(pos, pos.new_tensor(evidence))
            for pos, evidence in zip(layer.pos, self.places, strict=True)
        ]
        scores = torch.where(torch.stack(is_evidence), 2 - later, later)
        return Scores(scores.masked_fill((layer.pos < ENDS) | (layer.pos > last - ENDS), 3.0))


def oracle(budget: AmountLike, *evidence: Sequence[int]) -> Policy:
    """Build a policy that keeps the first and last 4 tokens, then evidence, then the latest."""
    score = Evidence(places=tuple(tuple(row) for row in evidence))
    return Policy(score=score, budget=Uniform(amount=budget), select=TopK())
