"""Budgets that follow from the scores alone: one ranking of all pairs, each head by itself, or each
pair by itself.
"""

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
from foveate.stages.budget.exact import filled
from foveate.stages.select import highest

Threshold = Annotated[float, Range(-1_000_000, 1_000_000)]
"""The lowest score that is kept."""
EVERYTHING = Amount.of("auto(100%,floor=1)")
"""What is above a threshold, without limits."""


@stage("one_ranking")
class OneRanking(AmountBudget):
    """A head keeps as many pairs as it has among the best of all heads of all layers (``over``
    "model") or of its layer, but at least ``floor`` of an even share. For scores that mean the same
    in every head, such as attention. Of the whole, ``even`` is given to all heads alike, and the
    rest by the ranking.

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
        """As many pairs as each head has among the best so far, or its least: with more layers the
        best are fewer of these, and heads that need more than their best leave others less. All
        that there is where a part is given evenly, which is rounded.
        """
        if self.even:
            return [one.available for one in scored]
        wish, least, _, _ = self._wished(scored, tokens, heads)
        return _of_layers(wish.maximum(least), scored)

    def _wished(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"], heads: int | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of every head: pairs among the best of all, its least, and those there are; then the
        total of each row, over so many ``heads``.
        """
        available, protected = (
            torch.cat([t.cpu() for t in of], 1)
            for of in ([one.available for one in scored], [one.protected for one in scored])
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
        """How many pairs of each head are among the ``totals`` best of all, per row."""
        device = scored[0].raw.device
        values = torch.cat([one.scores.values.flatten(1).to(device) for one in scored], 1)
        best = highest(values[:, None], totals[:, None].to(device))[:, 0]
        sizes = [one.raw.shape[1] * one.raw.shape[2] for one in scored]
        parts = zip(torch.split(best, sizes, dim=1), scored, strict=True)
        return torch.cat([part.view_as(one.raw).sum(-1) for part, one in parts], 1).cpu()


def _of_layers(
    counts: Int[Tensor, "b heads"], scored: Sequence[Scored]
) -> list[Int[Tensor, "b h"]]:
    parts = torch.split(counts, [one.available.shape[1] for one in scored], dim=1)
    return [part.to(one.available.device) for part, one in zip(parts, scored, strict=True)]


@stage("each_head")
class EachHead(AmountBudget):
    """Every head keeps as many of its best pairs as hold the amount's share of its own importance;
    the amount is an auto one, whose floor and cap bound each head.
    """

    scope: Scope = field(default="layer", init=False)

    def holding(self, one: Scored, share: float) -> Int[Tensor, "b h"]:
        """How many pairs of each head hold that share of what matters in it."""
        weights = matters(one)
        order = one.scores.values.argsort(dim=-1, descending=True, stable=True)
        held = weights.gather(-1, order).cumsum(-1)
        goal = share * held[..., -1:] * (1 - 1e-9)  # sums in another order
        return (held < goal).sum(-1) + 1

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [self.holding(one, float(Amount.of(self.amount).value)) for one in scored]


@stage("above_threshold", absolute=True)
class AboveThreshold:
    """Every head keeps the pairs whose score is ``threshold`` or more, and what is always kept: how
    many, the prompt says. For scores that mean the same in every prompt, such as those of
    ``kvzap``. The amount's floor and cap bound each head; the share in it is all.

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
                f"budget {amount}: what a threshold keeps is no share and no number. Leave the "
                "amount out, or give limits: auto(100%, floor=1, cap=50%)."
            )
        object.__setattr__(self, "amount", amount)

    def holding(self, one: Scored, share: float) -> Int[Tensor, "b h"]:
        """How many pairs of each head are kept: protected ones have infinite scores."""
        return (one.scores.values >= self.threshold).sum(-1)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        return [self.holding(one, 1.0) for one in scored]
