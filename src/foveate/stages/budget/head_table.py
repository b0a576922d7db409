"""Budgets by a table of head scores measured beforehand: HeadKV's and SparseMM's, and what they
have in common with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, NamedTuple

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
from foveate.stages.budget.exact import proportional, within

Temperature = Annotated[float, Range(0, 50)]
"""Powers that leave the highest of ten thousand equal scores above zero in double precision."""


Scores = tuple[tuple[float, ...], ...]
"""Of every KV head, layer after layer."""


@dataclass(frozen=True, kw_only=True)
class ByHead(AmountBudget):
    """A budget whose heads keep what a rule over all of them says, by a ``profile``: a file of the
    method named ``of``.
    """

    profile: str
    of: str
    scope: Scope = field(default="layer", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.calibrated

    @property
    def calibrated(self) -> Heading:
        """The profile in use."""
        raise NotImplementedError

    def by_head(self, depth: int, heads: int) -> Rule:
        """The rule over all KV heads, layer after layer.

        Raises:
            ProfileMismatch: the profile has other numbers of layers or heads.
        """
        raise NotImplementedError

    def rule_for(self, layer: Layer) -> Rule:
        """The same, for the model of a layer."""
        return self.by_head(layer.depth, layer.k.shape[1])

    def pairs(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
        """Of this layer's heads together."""
        return self._layer(one, tokens).sum(-1)

    def __call__(
        self, scored: Sequence[Scored], tokens: Int[Tensor, "b"]
    ) -> list[Int[Tensor, "b h"]]:
        wishes = [(one, self._layer(one, tokens)) for one in scored]
        return [within(one, wish, wish.sum(-1)) for one, wish in wishes]

    def _layer(self, one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
        rule, heads = self.rule_for(one.layer), one.layer.k.shape[1]
        protected = one.protected.amax(-1).tolist()
        rows = zip(tokens.tolist(), protected, one.layer.lengths.tolist(), strict=True)
        mine = slice(one.layer.ordinal * heads, (one.layer.ordinal + 1) * heads)
        return one.available.new_tensor([rule(*row)[mine] for row in rows])


@dataclass(frozen=True, kw_only=True)
class ByHeadScores(ByHead):
    """The same by a rule of head scores: the profile has one for every layer and KV head."""

    def rule(self, scores: Scores) -> Rule:
        """What every head of these scores keeps of a prompt."""
        raise NotImplementedError

    @property
    def calibrated(self) -> Profile:
        """The profile in use, in which some head scores above zero."""
        profile = load(self.profile, self.of)
        if not any(score > 0 for row in profile.by_layer for score in _listed(row)):
            raise InvalidInput(
                f"{self.profile!r} scores no head above 0: nothing can be shared out."
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
    """Every head keeps what is protected and ``floor`` of the rest of an even share; all else goes
    to the heads of all layers in proportion to their scores to the power of ``temperature``.

    What a head cannot use, as the prompt is shorter than its share, goes to the others; with
    ``as_released`` it lapses, and every head is rounded by itself, as in the authors' codes.
    ``profile`` is a file of one score for every layer and KV head, of the method named ``of``.

    Source: SparseMM (arXiv:2506.05344), section 3.2; HeadKV (arXiv:2410.19258), section 3.2.
    """

    floor: Share = 0.1
    temperature: Temperature = 1.0
    as_released: bool = False

    def rule(self, scores: Scores) -> Rule:
        as_in = self.of if self.as_released else None
        return HeadCounts(scores, self.floor, self.temperature, as_in)


class HeadCounts(NamedTuple):
    """A table's rule, given everything but the prompt."""

    scores: Scores
    floor: float
    temperature: float
    as_in: str | None

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Tokens of each KV head of a prompt of ``length``, ``tokens`` on average."""
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
    """One for all layers of a prompt, each of which asks for its row."""
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
    """Pairs of every head of every layer; they add up to ``tokens`` for each, if so many exist."""
    weights = (scores / scores.sum()).pow(temperature).flatten()
    mixed = floor / len(weights) + (1 - floor) * weights / weights.sum()
    least, most = (torch.full_like(mixed, n, dtype=torch.long) for n in (protected, length))
    return proportional(mixed, least, most, tokens * len(weights)).view_as(scores)


def released(
    scores: Float[Tensor, "L h"],
    tokens: int,
    protected: int,
    length: int,
    floor: float,
    temperature: float = 1.0,
    up: bool = False,
) -> Int[Tensor, "L h"]:
    """The same as the authors' codes have it: what exceeds the prompt lapses. The even share is
    rounded down by SparseMM, and ``up`` by HeadKV.
    """
    base = tokens - protected
    even = base - int(base * (1 - floor) + 1e-9) if up else int(base * floor)
    weights = (scores / scores.sum()).pow(temperature)
    shared = (weights / weights.sum() * (base - even) * scores.numel() + even).round().long()
    return (shared + protected).clamp_max(length)
