"""Layers or KV heads that keep different numbers of tokens: a few tiers, each a KV cache group.

vLLM gives a group of layers one block table, so only layers that keep the same number share a
group. One group per layer costs a third of a decode step in bookkeeping; a few groups cost nothing
measurable. So layers, or the KV heads of all layers where the budget differs by head (``heads``),
are put into a handful of tiers at most:

1. These cells are sorted by their counts for the longest prompt, and cut into runs.
2. A group's block holds one page of each of its cells. Blocks of all groups come from one pool and
   have one size, that of the largest group. So tiers have equal numbers of cells if possible, and
   otherwise differ by one: the smaller tiers then leave a page of every block unused. Among the
   numbers of tiers from half the limit to the limit, the one with the fewest unused pages is taken,
   and among equals the largest.
3. A tier keeps the mean of its cells' counts, rounded up, and then rounded up to free whole blocks.
   So all cells together keep at least the budget, and before block rounding less than one token
   per cell more.

An engine's groups are created once. So of the policies that its requests may choose, all that give
cells different numbers must have the same budget stage, at any amount.
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

DEFAULT_TIERS = 8
"""Limit of tiers unless the configuration sets another."""


def tiers_from(settings: Mapping[str, Any]) -> int:
    """Return the limit of tiers: "tiers" in the additional configuration of foveate.

    Raises:
        InvalidParameter: no integer, or less than one.
    """
    tiers = settings.get("tiers", DEFAULT_TIERS)
    if isinstance(tiers, bool) or not isinstance(tiers, int) or tiers < 1:
        raise InvalidParameter(
            f"tiers={tiers!r}: give the limit of groups of layers, at least 1. Each group has its "
            "own block table."
        )
    return tiers


def shaping(policies: Sequence[Policy]) -> Policy | None:
    """Return the policy by which layers, or heads, are put into tiers; None if all keep the same
    number under every policy.

    Raises:
        UnsupportedPolicy: two policies whose budgets differ in more than the amount.
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
    """Return True if the KV heads of a layer keep different numbers under one of these policies."""
    shape = shaping(policies)
    return shape is not None and isinstance(shape.budget, ForeseeableByHead)


def rooms_of(
    policies: Sequence[Policy], depth: int, heads: int, longest: int, tiers: int = DEFAULT_TIERS
) -> list[tuple[Room, ...]]:
    """Return the rooms of each cell under each policy; equal for the cells of one tier.

    Args:
        policies: policies that passed ``check_policy``.
        depth: compressed layers.
        heads: KV heads per layer. Cells are these, layer after layer, if ``by_head(policies)``;
            else they are the layers.
        longest: tokens of the longest prompt, at which the cells are compared.
        tiers: limit of tiers.

    Raises:
        ProfileMismatch: a profile of another number of layers or heads.
        UnsupportedPolicy: see :func:`shaping`.
    """
    shape = shaping(policies)
    cells = depth * (heads if by_head(policies) else 1)
    rules = [_counts(policy, depth, heads) for policy in policies]
    runs = [tuple(range(cells))]
    if shape is not None and (counts := rules[policies.index(shape)]) is not None:
        runs = cut(_sorted(shape, counts, longest, cells), tiers)
    rooms: dict[int, tuple[Room, ...]] = {}
    for run in runs:
        here = tuple(room_of(*pair, run) for pair in zip(policies, rules, strict=True))
        rooms |= dict.fromkeys(run, here)
    return [rooms[cell] for cell in range(cells)]


def room_of(policy: Policy, counts: LayerCounts | None = None, run: tuple[int, ...] = ()) -> Room:
    """Return the room of each cell of a ``run`` under a policy with these ``counts`` per cell;
    without ``counts``, the room that all cells share.
    """
    protected = ProtectedTokens.of(policy.select)
    room = Room.of(policy.amount, protected.tokens)
    if counts is None:
        return replace(room, every=Every.of(policy.when))
    return replace(room, tier=Tier(counts=counts, protected=protected, cells=run))


def _counts(policy: Policy, depth: int, heads: int) -> LayerCounts | None:
    """Return a policy's counts per cell; None if all cells keep the same number."""
    if isinstance(policy.budget, ForeseeableByHead):
        return policy.budget.by_head(depth, heads)
    return policy.budget.by_length(depth) if isinstance(policy.budget, Foreseeable) else None


def _sorted(policy: Policy, counts: LayerCounts, longest: int, cells: int) -> list[int]:
    """Return the cells, those with the largest counts first."""
    protected = ProtectedTokens.of(policy.select)
    average = min(Room.of(policy.amount, protected.tokens).average(longest), longest)
    kept = counts(average, protected.of_budget(average, longest), longest)
    return sorted(range(cells), key=lambda cell: (-kept[cell], cell))


def cut(cells: list[int], tiers: int) -> list[tuple[int, ...]]:
    """Cut these cells into at most ``tiers`` runs, of sizes that vLLM's groups can have."""
    number = _number(len(cells), tiers)
    size, larger = divmod(len(cells), number)
    ends = [size * (i + 1) + min(i + 1, larger) for i in range(number)]
    return [tuple(cells[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def _number(cells: int, tiers: int) -> int:
    """Return the number of tiers that leaves the fewest pages unused.

    vLLM makes all groups as large as the largest tier only if it is less than 1.5 times as large as
    the smallest tier; otherwise it cuts all tiers into groups of the smallest tier's size.
    """

    def unused(number: int) -> int:
        return -cells % number

    def fits(number: int) -> bool:
        size = cells // number
        return unused(number) == 0 or Fraction(size + 1, size) < Fraction(3, 2)

    possible = [n for n in range(1, min(tiers, cells) + 1) if fits(n)]
    many = [n for n in possible if 2 * n >= min(tiers, cells)] or possible[-1:]
    return min(many, key=lambda n: (unused(n), -n))
