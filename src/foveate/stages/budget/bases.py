"""Base classes of budgets: an amount, and counts that follow from lengths alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.policies.amount import Amount, AmountLike
from foveate.stages.budget.exact_totals import heads_of


@runtime_checkable
class Rule(Protocol):
    """Rule for the tokens of layers or heads: a ``LayerCounts``, which may be a named tuple."""

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class AmountBudget:
    """Budget with an ``amount``, parsed on construction."""

    amount: AmountLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", Amount.of(self.amount))


@dataclass(frozen=True, kw_only=True)
class ByLength(AmountBudget, ABC):
    """Budget whose counts follow from lengths alone, equal for all heads of a layer."""

    @property
    def foreseeable(self) -> bool:
        """True: the counts are known before anything is computed."""
        return True

    @abstractmethod
    def by_length(self, depth: int) -> Rule:
        """Return the rule for ``depth`` layers."""

    def pairs(self, scored_layer: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return this layer's count, times its number of heads."""
        return self._layer(scored_layer, tokens) * scored_layer.layer.k.shape[1]

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [
            heads_of(scored_layer, self._layer(scored_layer, tokens)) for scored_layer in scored
        ]

    def _layer(self, scored_layer: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        protected = scored_layer.protected.amax(-1).tolist()
        rows = zip(tokens.tolist(), protected, scored_layer.layer.lengths.tolist(), strict=True)
        counts = self.by_length(scored_layer.layer.depth)
        wished = [counts(*row)[scored_layer.layer.ordinal] for row in rows]
        return torch.tensor(wished, dtype=tokens.dtype, device=tokens.device)
