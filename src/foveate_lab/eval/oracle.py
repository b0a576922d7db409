"""The best that could be kept: the tokens that show the answer."""

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
ENDS = 4  # of the prompt, on either side: heads that look for nothing attend to its first tokens


@stage("evidence")
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Ranks both ends of each row's prompt first, then the tokens at these places, in their order,
    then later tokens before earlier ones.
    """

    places: tuple[tuple[int, ...], ...]

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        last = layer.lengths[:, None, None] - 1
        later = layer.pos.float() / (last + 1)
        shown = [
            torch.isin(pos, pos.new_tensor(places))
            for pos, places in zip(layer.pos, self.places, strict=True)
        ]
        scores = torch.where(torch.stack(shown), 2 - later, later)
        return Scores(scores.masked_fill((layer.pos < ENDS) | (layer.pos > last - ENDS), 3.0))


def oracle(budget: AmountLike, *places: Sequence[int]) -> Policy:
    """Keeps the first and the last 4 tokens of each row, its evidence, and then what came last."""
    score = Evidence(places=tuple(tuple(row) for row in places))
    return Policy(score=score, budget=Uniform(amount=budget), select=TopK())
