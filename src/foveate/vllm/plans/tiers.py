"""Layers or KV heads that keep different numbers of tokens: a few tiers, each a KV cache group.

vLLM gives a group of layers one block table, so only layers that keep the same number share one. A
group of its own for every layer costs a third of a decode step in bookkeeping; a few cost nothing
that could be measured. So layers, or where the budget differs by head the KV heads of all layers
(``heads``), are put into at most a handful of tiers:

1. These cells are sorted by what the budget gives them of the longest prompt, and cut into runs.
2. A group's block holds one page of each of its cells, and blocks of all groups come from one pool
   and have one size: that of the largest group. So tiers have equally many cells where their number
   allows it, and else differ by one: the shorter ones then leave a page of every block unused.
   Between half the permitted number of tiers and that number, the one is taken that leaves the
   fewest pages unused, and of these the largest.
3. A tier keeps the mean of its cells' counts, rounded up, and as many more as whole blocks ask
   for. So all cells together keep at least what the budget asks for, and more by less than one
   token a cell before blocks are looked at.

An engine's groups are made once, so of the policies that its requests may choose, those whose cells
differ must differ alike: the same budget, at whatever amount.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from foveate.errors import InvalidParameter, UnsupportedPolicy
from foveate.policies.policy import Policy, with_amount
from foveate.policies.protocols import Foreseeable, ForeseeableByHead, LayerCounts
from foveate.stages.budget import Uniform
from foveate.vllm.plans.boundaries import Every
from foveate.vllm.plans.gap import ProtectedTokens, Room, Tier

MOST = 8
"""Tiers, unless the configuration says another number."""


def tiers_from(settings: Mapping[str, Any]) -> int:
    """How many tiers there may be: "tiers" in the additional configuration of foveate.

    Raises:
        InvalidParameter: no number, or less than one.
    """
    most = settings.get("tiers", MOST)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InvalidParameter(
            f"tiers={most!r}: give how many groups layers may be put into, at least 1. Each has a "
            "block table of its own."
        )
    return most


def shaping(policies: Sequence[Policy]) -> Policy | None:
    """Return the policy by which layers, or heads, are put into tiers; None where all keep alike.

    Raises:
        UnsupportedPolicy: two that differ in more than the amount.
    """
    uneven = [policy for policy in policies if not isinstance(policy.budget, Uniform)]
    for other in uneven[1:]:
        if with_amount(other.budget, uneven[0].amount) != uneven[0].budget:
            raise UnsupportedPolicy(
                f"{uneven[0]} and {other} cannot be served by one engine: their budgets give "
                "layers, or heads, different numbers in different ways, and the groups that share "
                "a block table are made once. Start an engine for each."
            )
    return uneven[0] if uneven else None


def by_head(policies: Sequence[Policy]) -> bool:
    """Whether the KV heads of a layer keep different numbers under one of these policies."""
    shape = shaping(policies)
    return shape is not None and isinstance(shape.budget, ForeseeableByHead)


def rooms_of(
    policies: Sequence[Policy], depth: int, heads: int, longest: int, most: int = MOST
) -> list[tuple[Room, ...]]:
    """Return the rooms of each cell under each policy; equal for the cells of one tier.

    Args:
        policies: some that ``check_policy`` lets through.
        depth: compressed layers.
        heads: KV heads of each. Cells are these, layer after layer, if ``by_head(policies)``;
            else they are the layers.
        longest: tokens of the longest prompt, at which the cells are compared.
        most: tiers, at most.

    Raises:
        ProfileMismatch: a profile of another number of layers or heads.
        UnsupportedPolicy: see :func:`shaping`.
    """
    shape = shaping(policies)
    cells = depth * (heads if by_head(policies) else 1)
    rules = [_counts(policy, depth, heads) for policy in policies]
    runs = [tuple(range(cells))]
    if shape is not None and (counts := rules[policies.index(shape)]) is not None:
        runs = cut(_sorted(shape, counts, longest, cells), most)
    rooms: dict[int, tuple[Room, ...]] = {}
    for run in runs:
        here = tuple(room_of(*each, run) for each in zip(policies, rules, strict=True))
        rooms |= dict.fromkeys(run, here)
    return [rooms[cell] for cell in range(cells)]


def room_of(policy: Policy, counts: LayerCounts | None = None, run: tuple[int, ...] = ()) -> Room:
    """Return the room of each cell of a ``run``, to which a policy gives these ``counts``; without
    them, that of all cells.
    """
    protected = ProtectedTokens.of(policy.select)
    room = Room.of(policy.amount, protected.tokens)
    if counts is None:
        return replace(room, every=Every.of(policy.when))
    return replace(room, tier=Tier(counts=counts, protected=protected, cells=run))


def _counts(policy: Policy, depth: int, heads: int) -> LayerCounts | None:
    """Return the counts that a policy gives each cell; None where all keep alike."""
    if isinstance(policy.budget, ForeseeableByHead):
        return policy.budget.by_head(depth, heads)
    return policy.budget.by_length(depth) if isinstance(policy.budget, Foreseeable) else None


def _sorted(policy: Policy, counts: LayerCounts, longest: int, cells: int) -> list[int]:
    """Return the cells, those that keep most first."""
    protected = ProtectedTokens.of(policy.select)
    average = min(Room.of(policy.amount, protected.tokens).average(longest), longest)
    given = counts(average, protected.of_budget(average, longest), longest)
    return sorted(range(cells), key=lambda cell: (-given[cell], cell))


def cut(cells: list[int], most: int) -> list[tuple[int, ...]]:
    """Return runs of these cells, at most ``most``, of sizes that vLLM's groups can have."""
    number = _number(len(cells), most)
    size, larger = divmod(len(cells), number)
    ends = [size * (i + 1) + min(i + 1, larger) for i in range(number)]
    return [tuple(cells[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def _number(cells: int, most: int) -> int:
    """How many tiers leave the fewest pages unused.

    vLLM makes all groups as large as the largest tier only if that is less than half as large again
    as the smallest one; else it cuts all tiers into groups of the smallest one's size.
    """

    def unused(number: int) -> int:
        return -cells % number

    def fits(number: int) -> bool:
        size = cells // number
        return unused(number) == 0 or Fraction(size + 1, size) < Fraction(3, 2)

    possible = [n for n in range(1, min(most, cells) + 1) if fits(n)]
    many = [n for n in possible if 2 * n >= min(most, cells)] or possible[-1:]
    return min(many, key=lambda n: (unused(n), -n))
