"""The best that could be kept: the tokens that show the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foveate.core.amount import AmountLike
from foveate.core.layer import Layer, Scores
from foveate.core.policy import Policy
from foveate.core.spec import stage
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK

NAME = "oracle"
RECENT = 16  # the last tokens of the prompt, which say how to answer
SINKS = 4  # the first ones, which heads attend to that have nothing to look for


@stage("evidence")
@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Ranks the tokens at these places of the prompt first, in their order, and then later tokens
    before earlier ones.
    """

    places: tuple[int, ...]

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        places = torch.tensor(self.places, device=layer.pos.device)
        later = layer.pos / (layer.pos.amax() + 1)
        return Scores(torch.where(torch.isin(layer.pos, places), 2 - later, later))


def oracle(budget: AmountLike, places: Sequence[int]) -> Policy:
    """Keeps the evidence, the first 4 and the last 16 tokens, and then what came last before."""
    return Policy(score=Evidence(places=tuple(places)), budget=Uniform(amount=budget),
                  select=TopK(recent=RECENT, sinks=SINKS))  # fmt: skip
