"""Head budgets by how one ranking of all pairs comes out on average, measured beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.core.amount import Amount, AmountLike
from foveate.core.layer import Scored
from foveate.core.protocols import Scope
from foveate.core.spec import stage
from foveate.core.tensor_profile import TensorProfile, load_tensors
from foveate.errors import ProfileMismatch
from foveate.stages.budget.exact import filled, within
from foveate.stages.budget.head_table import Rule, rows_of_layer

LEVELS = 256
"""Into how many equal shares a head's pairs are cut."""


def levels(values: Float[Tensor, "h n"]) -> Float[Tensor, "h 256"]:
    """What stands in the middle of each of a head's ``LEVELS`` shares of its pairs, in falling
    order; between two pairs it is interpolated.
    """
    middles = (torch.arange(LEVELS, device=values.device, dtype=values.dtype) + 0.5) / LEVELS
    places = (middles * values.shape[-1] - 0.5).clamp(0, values.shape[-1] - 1)
    ranked = values.sort(dim=-1, descending=True).values
    below = places.floor().long()
    above = (below + 1).clamp_max(values.shape[-1] - 1)
    return ranked[:, below].lerp(ranked[:, above], places - below)


@stage("head_levels")
@dataclass(frozen=True, kw_only=True)
class HeadLevels:
    """A head keeps the share of the prompt that it has of all heads' best pairs on average, by the
    ``levels`` of a ``profile``: a file of tensors of the method named ``of``. So the numbers are
    known before a prompt is read, and layers are compressed one by one.
    """

    amount: AmountLike
    profile: str
    of: str
    scope: Scope = field(default="layer", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", Amount.of(self.amount))
        _ = self.calibrated

    @property
    def calibrated(self) -> TensorProfile:
        """The profile in use."""
        return load_tensors(self.profile, self.of)

    def by_head(self, depth: int, heads: int) -> Rule:
        """The rule over all KV heads, layer after layer.

        Raises:
            ProfileMismatch: the profile has other numbers of layers or heads.
        """
        self.calibrated.check_layers(depth)
        for place, held in enumerate(self.calibrated.by_layer):
            if len(held["levels"]) != heads:
                raise ProfileMismatch(
                    f"this {self.of} profile of {self.calibrated.model!r} has "
                    f"{len(held['levels'])} KV heads in layer {place}, the model {heads}. "
                    f"{self.calibrated.way_out}"
                )
        return LevelCounts(self.profile, self.of)

    def pairs(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Of this layer's heads together."""
        return self._layer(one, tokens).sum(-1)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        wishes = [(one, self._layer(one, tokens)) for one in scored]
        return [within(one, wish, wish.sum(-1)) for one, wish in wishes]

    def _layer(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
        rule = self.by_head(one.layer.depth, one.layer.k.shape[1])
        return rows_of_layer(rule, one, tokens)


class LevelCounts(NamedTuple):
    """The rule of a profile, given everything but the prompt."""

    profile: str
    of: str

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Tokens of each KV head of a prompt of ``length``, ``tokens`` on average."""
        return _counts(load_tensors(self.profile, self.of), tokens, protected, length)


@lru_cache(maxsize=256)
def _counts(profile: TensorProfile, tokens: int, protected: int, length: int) -> tuple[int, ...]:
    """As many shares of a head as are among the best of all heads; then pairs that add up."""
    table = torch.cat([held["levels"] for held in profile.by_layer])
    number = min(table.numel(), round(table.numel() * tokens / length))
    best = torch.zeros(table.numel(), dtype=torch.bool)
    best[table.flatten().topk(number).indices] = True
    wish = (best.view_as(table).sum(-1).double() * length / LEVELS).round().long().tolist()
    low, high = [min(protected, length)] * len(wish), [length] * len(wish)
    return tuple(filled(wish, low, high, tokens * len(wish)))
