"""AdaKV: SnapKV whose heads share a layer's budget, by one ranking over all of them.

Departs from the authors' code in the total, which is exact; the release rounds every head by itself
(``as_released``). Ragged: heads keep different numbers, and only these are stored.

In a sum with MixKV the heads' numbers follow from the pooled attention, as in MixKV's release, and
each head fills its own by the mixed score; with ``by="score"`` that score decides both.
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
from foveate.stages.budget.exact import within
from foveate.stages.budget.shares import Uniform
from foveate.stages.recent import part

By = Literal["extrinsic", "score"]


@stage("across_heads")
class AcrossHeads(AmountBudget):
    """A head keeps as many pairs as it has among the best of its whole layer, mixed with ``floor``
    of an even share, so that no head is left with nothing. If that is ``guaranteed``, it is each
    head's best, and all else goes by the ranking alone, as in kvpress.

    ``layers`` is the budget that says how much each layer keeps in all: the same for every layer by
    default, or another one, such as ``pyramid`` or ``prefix_budget``; its amount is this one's.
    With ``normalised`` a head's scores are first scaled by the share of them that the head's own
    best hold. With ``as_released`` each head is rounded by itself, as in the authors' code, and the
    total drifts by a few pairs.

    The ranking is ``by`` the part "extrinsic" of a score that has one: MixKV's, which names so what
    it wraps, also where another score wraps it in turn. Of any other score, and ``by`` "score", it
    is by the score itself.

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

    def pairs(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """What the budget over layers says."""
        inner = self._inner
        if self.as_released:
            return self([one], tokens)[0].sum(-1)
        if isinstance(inner, Planned):
            return inner.pairs(one, tokens)
        return tokens * one.layer.k.shape[1]

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        even = self._inner(scored, tokens)
        return [self._layer(one, share) for one, share in zip(scored, even, strict=True)]

    def _layer(self, one: Scored, even: Int[Tensor, "b h"]) -> Int[Tensor, "b h"]:
        total, protected = even.sum(-1), one.protected
        values = self._ranked(one, even)
        if self.guaranteed:
            values = values.masked_fill(highest(values, part(even, self.floor)), torch.inf)
        best = highest(values.flatten(1)[:, None], total[:, None])
        if self.guaranteed:
            return within(one, best.view_as(one.scores.values).sum(-1), total)
        ranked = best.view_as(one.scores.values).sum(-1) - protected
        least = ((even - protected).float() * self.floor).long()
        wish = (ranked.float() * (1 - self.floor) + least).round().long() + protected
        if self.as_released:
            return torch.minimum(wish, one.available)
        return within(one, wish, total)

    def _ranked(self, one: Scored, even: Int[Tensor, "b h"]) -> Float[Tensor, "b h n"]:
        values = one.scores.values
        if self.by == "extrinsic":  # what is protected or empty stays so
            ranking = one.scores.parts.get("extrinsic", values)
            values = torch.where(values.isfinite(), ranking.to(values), values)
        if not self.normalised:
            return values
        free = values.isfinite()
        own = torch.where(free, values, 0.0)
        best = highest(torch.where(free, values, -torch.inf), even - one.protected) & free
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
    """Keeps what the last queries attend to, more in heads that spread their attention.

    ``floor`` is the share of an even budget that every head has: mixed with the ranking, or its
    best tokens, ``guaranteed``. ``by`` says what ranks over heads in a sum with MixKV.

    Args:
        normalised: Scale a head's scores by the share of them that its own best hold.
        guaranteed: Give each head its own best as its floor; by default it is mixed in.
        by: What shares a layer's budget among heads: attention alone, or the score.

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
