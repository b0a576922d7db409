"""Budgets by the scores alone: one ranking of all pairs, each head by itself, or a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.compression.pipeline import matters
from foveate.errors import InvalidBudget
from foveate.policies.amount import Amount, AmountLike
from foveate.policies.parameters import Range, Share
from foveate.policies.protocols import Scope
from foveate.policies.spec import stage
from foveate.stages.budget.bases import AmountBudget
from foveate.stages.budget.exact_totals import filled
from foveate.stages.select import highest

Threshold = Annotated[float, Range(-1_000_000, 1_000_000)]
"""Lowest score that is kept."""
EVERYTHING = Amount.of("auto(100%,floor=1)")
"""Amount without limits: every pair above the threshold."""


@stage("one_ranking")
class OneRanking(AmountBudget):
    """Budget by one ranking of the pairs of all heads of all layers, or of each layer.

    A head keeps as many pairs as it has among the best (``over`` "model": of all layers), but at
    least ``floor`` of an even share. It is for scores that mean the same in every head, such as
    attention. A share ``even`` of the budget goes to all heads alike, the rest by the ranking.

    Source: KVzip (arXiv:2505.23416), section 3.4 (non-uniform head budgets).
    """

    over: Scope = "model"
    floor: Share = 0.0
    even: Share = 0.0

    @property
    def scope(self) -> Scope:
        return self.over

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        wish, least, available, totals = self._wished(scored, tokens, None)
        rows = zip(wish.tolist(), least.tolist(), available.tolist(), totals.tolist(), strict=True)
        exact = wish.new_tensor([filled(*row) for row in rows])
        return _of_layers(exact, scored)

    def at_most(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], heads: int
    ) -> list[Int[Tensor, "b h"]]:
        """Return upper bounds from the layers so far.

        A head's bound is its number among the best so far, or its least: with more layers fewer of
        its pairs are among the best, and heads that need more than their best leave others less.
        With an ``even`` part, which is rounded, the bound is all of a head's pairs.
        """
        if self.even:
            return [scored_layer.available for scored_layer in scored]
        wish, least, _, _ = self._wished(scored, tokens, heads)
        return _of_layers(wish.maximum(least), scored)

    def _wished(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], heads: int | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return each head's pairs among the best, minimum and available pairs; and the rows'
        totals.

        Totals are over ``heads`` heads, by default those at hand.
        """
        available, protected = (
            torch.cat([t.cpu() for t in of], 1)
            for of in (
                [scored_layer.available for scored_layer in scored],
                [scored_layer.protected for scored_layer in scored],
            )
        )
        totals = tokens.cpu() * (available.shape[1] if heads is None else heads)
        totals = totals.minimum(available.sum(-1))
        least = (tokens.cpu()[:, None].float() * self.floor).long()
        least = least.maximum(protected).minimum(available)
        everything = bool((totals == available.sum(-1)).all())
        wish = available if everything else self._among_the_best(scored, totals)
        if self.even and not everything:
            mixed = self.even * tokens.cpu()[:, None] + (1 - self.even) * wish
            wish = mixed.round().to(wish.dtype)
        return wish, least, available, totals

    @staticmethod
    def _among_the_best(
        scored: Sequence[Scored], totals: Int[Tensor, "b"]
    ) -> Int[Tensor, "b heads"]:
        """Count each head's pairs among the ``totals`` best of all, per row."""
        device = scored[0].raw.device
        values = torch.cat(
            [scored_layer.scores.values.flatten(1).to(device) for scored_layer in scored], 1
        )
        best = highest(values[:, None], totals[:, None].to(device))[:, 0]
        sizes = [scored_layer.raw.shape[1] * scored_layer.raw.shape[2] for scored_layer in scored]
        parts = zip(torch.split(best, sizes, dim=1), scored, strict=True)
        return torch.cat(
            [part.view_as(scored_layer.raw).sum(-1) for part, scored_layer in parts], 1
        ).cpu()


def _of_layers(
    counts: Int[Tensor, "b heads"], scored: Sequence[Scored]
) -> list[Int[Tensor, "b h"]]:
    parts = torch.split(counts, [scored_layer.available.shape[1] for scored_layer in scored], dim=1)
    return [
        part.to(scored_layer.available.device)
        for part, scored_layer in zip(parts, scored, strict=True)
    ]


@stage("each_head")
class EachHead(AmountBudget):
    """Budget of each head by itself: its best pairs that have a share of its own importance.

    The amount is an auto one, whose floor and cap bound each head.
    """

    scope: Scope = field(default="layer", init=False)

    def holding(self, scored_layer: Scored, share: float) -> Int[Tensor, "b h"]:
        """Return how many of each head's best pairs have this share of its importance."""
        weights = matters(scored_layer)
        order = scored_layer.scores.values.argsort(dim=-1, descending=True, stable=True)
        cumulative = weights.gather(-1, order).cumsum(-1)
        goal = share * cumulative[..., -1:] * (1 - 1e-9)  # tolerates another order of summation
        return (cumulative < goal).sum(-1) + 1

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [
            self.holding(scored_layer, float(Amount.of(self.amount).value))
            for scored_layer in scored
        ]


@stage("above_threshold", absolute=True)
class AboveThreshold:
    """Budget of the pairs that score ``threshold`` or more, and of protected ones.

    Their number depends on the prompt. It is for scores that mean the same in every prompt, such as
    those of ``kvzap``. The amount's floor and cap bound each head; its share must be 100 %.

    Source: KVzap (arXiv:2601.07891), and DMSPress of kvpress.

    Raises:
        InvalidBudget: an amount that is not auto(100%), with or without limits.
    """

    threshold: Threshold
    amount: AmountLike = EVERYTHING
    scope: Scope = field(default="layer", init=False)

    def __post_init__(self) -> None:
        amount = Amount.of(self.amount)
        if amount.kind != "auto" or amount.value != 1:
            raise InvalidBudget(
                f"budget {amount}: a threshold takes no share and no number of pairs. Leave the "
                "amount out, or give limits: auto(100%, floor=1, cap=50%)."
            )
        object.__setattr__(self, "amount", amount)

    def holding(self, scored_layer: Scored, share: float) -> Int[Tensor, "b h"]:
        """Count each head's pairs at or above the threshold; protected ones score infinity."""
        return (scored_layer.scores.values >= self.threshold).sum(-1)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [self.holding(scored_layer, 1.0) for scored_layer in scored]
