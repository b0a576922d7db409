"""Parts that budgets have in common: an amount, and counts that follow from lengths alone."""

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
from foveate.stages.budget.exact import heads_of


@runtime_checkable
class Rule(Protocol):
    """A rule for what layers or heads keep: a ``LayerCounts`` that may be a named tuple, too."""

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class AmountBudget:
    """A budget that shares out an ``amount``."""

    amount: AmountLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", Amount.of(self.amount))


@dataclass(frozen=True, kw_only=True)
class ByLength(AmountBudget, ABC):
    """A budget whose layers keep what follows from lengths alone; a layer's heads the same."""

    @property
    def foreseeable(self) -> bool:
        """Always True."""
        return True

    @abstractmethod
    def by_length(self, depth: int) -> Rule:
        """Return the rule over that many layers."""

    def pairs(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return this layer's count, times its heads."""
        return self._layer(one, tokens) * one.layer.k.shape[1]

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [heads_of(one, self._layer(one, tokens)) for one in scored]

    def _layer(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        protected = one.protected.amax(-1).tolist()
        rows = zip(tokens.tolist(), protected, one.layer.lengths.tolist(), strict=True)
        counts = self.by_length(one.layer.depth)
        wished = [counts(*row)[one.layer.ordinal] for row in rows]
        return torch.tensor(wished, dtype=tokens.dtype, device=tokens.device)
