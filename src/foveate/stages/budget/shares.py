"""Budgets by layer: the same for all, or by a note of the score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.errors import InvalidParameter
from foveate.policies.parameters import Share, ShareBelow
from foveate.policies.protocols import Scope
from foveate.policies.spec import stage
from foveate.stages.budget.bases import AmountBudget
from foveate.stages.budget.exact_totals import by_layer, heads_of


@stage("uniform", steady=True)
class Uniform(AmountBudget):
    """Budget of ``amount`` for every KV head; the surplus of a shorter head goes to its layer."""

    scope: Scope = field(default="layer", init=False)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [heads_of(scored_layer, tokens) for scored_layer in scored]


@stage("layer_shares")
class LayerShares(AmountBudget):
    """Budget that shares the total among layers by a note of the score.

    A layer's share is in proportion to the note, or to its exponential ("softmax"), but at least
    ``least`` of the prompt. A share ``even`` of the total goes to all layers alike, the rest by the
    note.

    The score has the note, [b], under the name ``of``: "entropy" (MEDA), "density" (VL-Cache),
    "mass" (TGV-KV).
    """

    of: str
    how: Literal["proportional", "softmax"] = "proportional"
    least: ShareBelow = 0.01
    even: Share = 0.0
    scope: Scope = field(default="model", init=False)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        if any(self.of not in scored_layer.scores.notes for scored_layer in scored):
            raise InvalidParameter(
                f"the budget layer_shares(of={self.of}) needs a score that notes {self.of!r} of "
                "every layer."
            )
        notes = torch.stack(
            [scored_layer.scores.notes[self.of].cpu().double() for scored_layer in scored], dim=1
        )
        if self.how == "softmax":
            shares = notes.softmax(-1)
        else:
            total = notes.sum(-1, keepdim=True)
            shares = torch.where(total > 0, notes / total, 1 / len(scored))
        lengths = scored[0].layer.lengths.cpu()[:, None]
        shares = self.even / len(scored) + (1 - self.even) * shares
        wish = (shares * (tokens.cpu() * len(scored))[:, None]).round()
        least = (lengths.float() * self.least).round().clamp_min(1)
        wish = wish.clamp_min(least).minimum(lengths)
        return by_layer(scored, wish.long(), tokens)
