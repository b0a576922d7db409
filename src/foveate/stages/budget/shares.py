"""Budgets by layer: all the same, or by a note of the score."""

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
from foveate.stages.budget.exact import by_layer, heads_of


@stage("uniform", steady=True)
class Uniform(AmountBudget):
    """Every KV head keeps ``amount``. A head that holds less passes the rest on to its layer."""

    scope: Scope = field(default="layer", init=False)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [heads_of(one, tokens) for one in scored]


@stage("layer_shares")
class LayerShares(AmountBudget):
    """Every layer keeps a share of the whole by its note: in proportion to it, or to its
    exponential ("softmax"), but at least ``least`` of the prompt. Of the whole, ``even`` is given
    to all layers alike, and the rest by the note.

    The score leaves the note, [b], under the name ``of``: "entropy" (MEDA), "density" (VL-Cache),
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
        if any(self.of not in one.scores.notes for one in scored):
            raise InvalidParameter(
                f"the budget layer_shares(of={self.of}) needs a score that notes {self.of!r} of "
                "every layer."
            )
        notes = torch.stack([one.scores.notes[self.of].cpu().double() for one in scored], dim=1)
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
