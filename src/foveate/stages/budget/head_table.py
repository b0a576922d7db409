"""Budgets by a table of head scores measured beforehand, as in HeadKV and SparseMM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored
from foveate.errors import InvalidInput
from foveate.policies.parameters import Range, Share
from foveate.policies.protocols import Scope
from foveate.policies.spec import stage
from foveate.profiles.heading import Heading
from foveate.profiles.profile import Profile, load
from foveate.stages.budget.bases import AmountBudget, Rule
from foveate.stages.budget.exact_totals import proportional, within

Temperature = Annotated[float, Range(0, 50)]
"""Exponents that keep the highest of ten thousand equal scores above zero in float64."""


Scores = tuple[tuple[float, ...], ...]
"""Score of every KV head, layer after layer."""


@dataclass(frozen=True, kw_only=True)
class ByHead(AmountBudget):
    """Budget of each head by a rule over all heads, from a ``profile``.

    The profile is a file of the method named ``of``.
    """

    profile: str
    of: str
    scope: Scope = field(default="layer", init=False)
    instead_for_latents: ClassVar[str] = (
        "it divides a budget among heads. Use snapkv, or recommended without heads=by_profile."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.calibrated

    @property
    def calibrated(self) -> Heading:
        """Profile in use."""
        raise NotImplementedError

    def by_head(self, depth: int, heads: int) -> Rule:
        """Return the rule over all KV heads, layer after layer.

        Raises:
            ProfileMismatch: the profile has other numbers of layers or heads.
        """
        raise NotImplementedError

    def rule_for(self, layer: Layer) -> Rule:
        """Return the rule for the model of a layer."""
        return self.by_head(layer.depth, layer.k.shape[1])

    def pairs(self, scored_layer: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Return each row's total over this layer's heads."""
        return self._layer(scored_layer, tokens).sum(-1)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        wishes = [(scored_layer, self._layer(scored_layer, tokens)) for scored_layer in scored]
        return [within(scored_layer, wish, wish.sum(-1)) for scored_layer, wish in wishes]

    def _layer(self, scored_layer: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
        rule, heads = self.rule_for(scored_layer.layer), scored_layer.layer.k.shape[1]
        protected = scored_layer.protected.amax(-1).tolist()
        rows = zip(tokens.tolist(), protected, scored_layer.layer.lengths.tolist(), strict=True)
        of_layer = slice(
            scored_layer.layer.ordinal * heads, (scored_layer.layer.ordinal + 1) * heads
        )
        return scored_layer.available.new_tensor([rule(*row)[of_layer] for row in rows])


@dataclass(frozen=True, kw_only=True)
class ByHeadScores(ByHead):
    """Budget of each head by its score in a profile of one score for every layer and KV head."""

    def rule(self, scores: Scores) -> Rule:
        """Return the rule for these scores."""
        raise NotImplementedError

    @property
    def calibrated(self) -> Profile:
        """Profile in use, which has at least one score above zero."""
        profile = load(self.profile, self.of)
        if not any(score > 0 for row in profile.by_layer for score in _listed(row)):
            raise InvalidInput(
                f"{self.profile!r} has no head score above 0: no budget can be shared out by it."
            )
        return profile

    def by_head(self, depth: int, heads: int) -> Rule:
        profile = self.calibrated
        profile.check_layers(depth)
        for layer in range(depth):
            profile.check_row(layer, heads, layer)
        return self._rule_of(profile)

    def rule_for(self, layer: Layer) -> Rule:
        profile = self.calibrated
        profile.check_layers(layer.depth)
        profile.check_heads(layer)
        return self._rule_of(profile)

    def _rule_of(self, profile: Profile) -> Rule:
        return self.rule(tuple(map(tuple, profile.by_layer)))


@stage("head_table")
class HeadTable(ByHeadScores):
    """Budget of every head in proportion to its score, above a floor.

    Every head keeps the protected tokens and ``floor`` of the rest of an even share; all else goes
    to the heads of all layers in proportion to their scores to the power of ``temperature``.

    The part that a head cannot use, because the prompt is shorter than its share, goes to the
    others; with ``as_released`` it is dropped, and every head is rounded by itself, as in the
    authors' codes. ``profile`` is a file of one score for every layer and KV head, of the method
    named ``of``.

    Source: SparseMM (arXiv:2506.05344), section 3.2; HeadKV (arXiv:2410.19258), section 3.2.
    """

    floor: Share = 0.1
    temperature: Temperature = 1.0
    as_released: bool = False

    def rule(self, scores: Scores) -> Rule:
        as_in = self.of if self.as_released else None
        return HeadCounts(scores, self.floor, self.temperature, as_in)


class HeadCounts(NamedTuple):
    """Rule of :class:`HeadTable` for one table of scores; hashable."""

    scores: Scores
    floor: float
    temperature: float
    as_in: str | None

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Return each KV head's tokens for a prompt of ``length``, ``tokens`` on average."""
        scores, *how = self
        return tuple(_table(scores, tokens, protected, length, *how).flatten().tolist())


def _listed(row: list[float] | float) -> list[float]:
    return row if isinstance(row, list) else [row]


@lru_cache(maxsize=256)
def _table(
    scores: Scores,
    tokens: int,
    protected: int,
    length: int,
    floor: float,
    temperature: float,
    as_in: str | None,
) -> Int[Tensor, "L h"]:
    """Compute the counts of all heads; cached, since each layer of a prompt looks up its row."""
    table = torch.tensor(scores, dtype=torch.float64, device="cpu")
    if as_in is None:
        return capacities(table, tokens, protected, length, floor, temperature)
    up = as_in == "headkv"
    return released(table, tokens, protected, length, floor, temperature, up)


def capacities(
    scores: Float[Tensor, "L h"],
    tokens: int,
    protected: int,
    length: int,
    floor: float,
    temperature: float = 1.0,
) -> Int[Tensor, "L h"]:
    """Return the pairs of every head, which add up to ``tokens`` per head if so many exist."""
    weights = (scores / scores.sum()).pow(temperature).flatten()
    mixed = floor / len(weights) + (1 - floor) * weights / weights.sum()
    least, limit = (torch.full_like(mixed, n, dtype=torch.long) for n in (protected, length))
    return proportional(mixed, least, limit, tokens * len(weights)).view_as(scores)


def released(
    scores: Float[Tensor, "L h"],
    tokens: int,
    protected: int,
    length: int,
    floor: float,
    temperature: float = 1.0,
    up: bool = False,
) -> Int[Tensor, "L h"]:
    """Return the pairs of every head as the authors' codes compute them.

    The part that exceeds the prompt is dropped. The even share is rounded down by SparseMM, and
    ``up`` by HeadKV.
    """
    base = tokens - protected
    even = base - int(base * (1 - floor) + 1e-9) if up else int(base * floor)
    weights = (scores / scores.sum()).pow(temperature)
    shared = (weights / weights.sum() * (base - even) * scores.numel() + even).round().long()
    return (shared + protected).clamp_max(length)
