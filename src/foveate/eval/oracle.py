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
    """Ranks the tokens at these places of each row's prompt first, in their order, and then later
    tokens before earlier ones.
    """

    places: tuple[tuple[int, ...], ...]

    def queries(self, tokens: int) -> int:
        return 0

    def __call__(self, layer: Layer) -> Scores:
        later = layer.pos / (layer.pos.amax() + 1)
        shown = [
            torch.isin(pos, torch.tensor(places, device=pos.device))
            for pos, places in zip(layer.pos, self.places, strict=True)
        ]
        return Scores(torch.where(torch.stack(shown), 2 - later, later))


def oracle(budget: AmountLike, *places: Sequence[int], recent: int = RECENT) -> Policy:
    """Keeps the evidence of each row, the first 4 and the last ``recent`` tokens, and then what
    came last before.
    """
    score = Evidence(places=tuple(tuple(row) for row in places))
    select = TopK(recent=recent, sinks=SINKS)
    return Policy(score=score, budget=Uniform(amount=budget), select=select)
