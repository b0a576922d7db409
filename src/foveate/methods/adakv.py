"""AdaKV: SnapKV with a layer's budget shared among its heads by one ranking over all of them.

Heads keep different numbers of pairs (a ragged cache), and only these are stored. Difference from
the authors' code: the total is exact, where the release rounds every head by itself
(``as_released``).

Added to MixKV, heads get their numbers from the pooled attention, as in MixKV's release, and fill
them by the mixed score. With ``by="score"`` the mixed score decides both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Kernel, Share, Window
from foveate.policies.protocols import Budget, Planned, Scope
from foveate.stages import Pool, Reduction, TopK, WindowAttention, highest
from foveate.stages.budget.bases import AmountBudget
from foveate.stages.budget.exact_totals import within
from foveate.stages.budget.shares import Uniform
from foveate.stages.recent import part

By = Literal["extrinsic", "score"]


@stage(
    "across_heads",
    instead_for_latents="it splits a layer's budget among its heads. Leave adakv out.",
)
class AcrossHeads(AmountBudget):
    """Budget that splits each layer's total among its heads by one ranking of all their pairs.

    A head gets as many pairs as it has among the best of its layer, mixed with ``floor`` of an even
    share, so that no head is left empty. If ``guaranteed``, each head first keeps that share of its
    own best pairs, and the ranking alone decides the rest, as in kvpress.

    Args:
        floor: Share of an even budget that every head has.
        normalised: Scale a head's scores by the share of them that its own best pairs hold.
        layers: Budget that gives each layer's total, e.g. ``pyramid`` or ``prefix_budget``; by
            default the same for every layer. It takes its amount from this budget.
        as_released: Round each head by itself, as the authors' code does; the total then drifts by
            a few pairs.
        guaranteed: Give each head its own best pairs as its floor.
        by: Ranking: "extrinsic" uses the part of that name where the score has one (MixKV names so
            the score that it wraps, however deeply); "score", and any other score, rank by the
            score itself.

    Source: AdaKV (arXiv:2407.11550), Algorithm 1 and section 3.4, and the release.
    """

    floor: Share = 0.2
    normalised: bool = False
    layers: Budget | None = None
    as_released: bool = False
    guaranteed: bool = False
    by: By = "extrinsic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            inner: Any = self.layers
            object.__setattr__(self, "layers", replace(inner, amount=self.amount))

    @property
    def _inner(self) -> Budget:
        return Uniform(amount=self.amount) if self.layers is None else self.layers

    @property
    def scope(self) -> Scope:
        return self._inner.scope

    def pairs(self, scored_layer: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return each row's total for this layer, as the budget over layers sets it."""
        inner = self._inner
        if self.as_released:
            return self([scored_layer], tokens)[0].sum(-1)
        if isinstance(inner, Planned):
            return inner.pairs(scored_layer, tokens)
        return tokens * scored_layer.layer.k.shape[1]

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        even = self._inner(scored, tokens)
        return [
            self._layer(scored_layer, share)
            for scored_layer, share in zip(scored, even, strict=True)
        ]

    def _layer(self, scored_layer: Scored, even: Int[Tensor, "b h"]) -> Int[Tensor, "b h"]:
        total, protected = even.sum(-1), scored_layer.protected
        values = self._ranked(scored_layer, even)
        if self.guaranteed:
            values = values.masked_fill(highest(values, part(even, self.floor)), torch.inf)
        best = highest(values.flatten(1)[:, None], total[:, None])
        if self.guaranteed:
            return within(scored_layer, best.view_as(scored_layer.scores.values).sum(-1), total)
        ranked = best.view_as(scored_layer.scores.values).sum(-1) - protected
        least = ((even - protected).float() * self.floor).long()
        wish = (ranked.float() * (1 - self.floor) + least).round().long() + protected
        if self.as_released:
            return torch.minimum(wish, scored_layer.available)
        return within(scored_layer, wish, total)

    def _ranked(self, scored_layer: Scored, even: Int[Tensor, "b h"]) -> Float[Tensor, "b h n"]:
        values = scored_layer.scores.values
        if self.by == "extrinsic":  # protected (+inf) and empty (-inf) slots keep their values
            ranking = scored_layer.scores.parts.get("extrinsic", values)
            values = torch.where(values.isfinite(), ranking.to(values), values)
        if not self.normalised:
            return values
        free = values.isfinite()
        own = torch.where(free, values, 0.0)
        best = highest(torch.where(free, values, -torch.inf), even - scored_layer.protected) & free
        share = torch.where(best, own, 0.0).sum(-1) / own.sum(-1).clamp_min(1e-30)
        return torch.where(free, values * share[..., None], values)


@method("feng2025adakv", adds=("budget",))
def adakv(
    *,
    budget: Amount,
    floor: Share = 0.2,
    normalised: bool = False,
    as_released: bool = False,
    guaranteed: bool = False,
    by: By = "extrinsic",
    window: Window = 32,
    kernel: Kernel = 7,
    pool: Pool = "max",
    group: Reduction = "mean",
) -> Policy:
    """Tokens that the last queries attend to, with more in heads that spread their attention.

    ``floor`` is the share of an even budget that every head has: mixed into the ranking, or with
    ``guaranteed`` the head's best tokens. ``by`` sets the ranking over heads in a sum with MixKV.
    Algorithm 1, section 3.4.

    Args:
        normalised: Scale a head's scores by the share of them that its own best hold.
        guaranteed: Give each head its own best as its floor; by default it is mixed in.
        by: Ranking that splits a layer's budget among heads: attention alone, or the score.

    Defaults:
        release; `floor`: its scripts for grouped queries (0.5 in a snippet of its README);
        `normalised`: off in its command line, on in the ports of MixKV, SparseMM and
        KVCache-Factory
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=AcrossHeads(
            amount=budget,
            floor=floor,
            normalised=normalised,
            as_released=as_released,
            guaranteed=guaranteed,
            by=by,
        ),
        select=TopK(recent=window),
    )
