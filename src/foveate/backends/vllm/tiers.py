"""Layers that keep different numbers of tokens: a few tiers of layers, each a KV cache group.

vLLM gives a group of layers one block table, so only layers that keep the same number share one. A
group of its own for every layer costs a third of a decode step in bookkeeping; a few cost nothing
that could be measured. So layers are put into at most a handful of tiers:

1. They are sorted by what the budget gives them of the longest prompt, and cut into runs.
2. A group's block holds one page of each of its layers, and blocks of all groups come from one pool
   and have one size: that of the largest group. So tiers have equally many layers where the number
   of layers allows it, and else differ by one: the shorter ones then leave a page of every block
   unused. Between half the permitted number of tiers and that number, the one is taken that leaves
   the fewest pages unused, and of these the largest.
3. A tier keeps the mean of its layers' counts, rounded up, and as many more as whole blocks ask
   for. So all layers together keep at least what the budget asks for, and more by less than one
   token a layer before blocks are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from foveate.backends.vllm.gap import Protected, Room, Tier
from foveate.core.policy import Policy
from foveate.core.protocols import Foreseeable, LayerCounts
from foveate.errors import InvalidParameter

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


def rooms_of(policy: Policy, depth: int, longest: int, most: int = MOST) -> list[Room]:
    """What each of ``depth`` compressed layers keeps; equal for the layers of one tier.

    Args:
        policy: one that ``check_policy`` lets through.
        depth: compressed layers.
        longest: tokens of the longest prompt, at which the layers are compared.
        most: tiers, at most.

    Raises:
        ProfileMismatch: a profile of another number of layers.
    """
    protected = Protected.of(policy.select)
    room = Room.of(policy.amount, protected.tokens)
    if not isinstance(policy.budget, Foreseeable):
        return [room] * depth
    counts = policy.budget.by_length(depth)
    rooms: dict[int, Room] = {}
    for layers in cut(_sorted(counts, room, protected, longest, depth), most):
        tier = Tier(counts=counts, protected=protected, layers=layers)
        rooms |= dict.fromkeys(layers, replace(room, tier=tier))
    return [rooms[place] for place in range(depth)]


def _sorted(
    counts: LayerCounts, room: Room, protected: Protected, longest: int, depth: int
) -> list[int]:
    """The layers, those that keep most first."""
    average = min(room.average(longest), longest)
    given = counts(average, protected.of_budget(average, longest), longest)
    return sorted(range(depth), key=lambda place: (-given[place], place))


def cut(layers: list[int], most: int) -> list[tuple[int, ...]]:
    """Runs of these layers, at most ``most``, of sizes that vLLM's groups can have."""
    number = _number(len(layers), most)
    size, larger = divmod(len(layers), number)
    ends = [size * (i + 1) + min(i + 1, larger) for i in range(number)]
    return [tuple(layers[a:b]) for a, b in zip([0, *ends], ends, strict=False)]


def _number(layers: int, most: int) -> int:
    """How many tiers leave the fewest pages unused.

    vLLM makes all groups as large as the largest tier only if that is less than half as large again
    as the smallest one; else it cuts all tiers into groups of the smallest one's size.
    """

    def unused(number: int) -> int:
        return -layers % number

    def fits(number: int) -> bool:
        size = layers // number
        return unused(number) == 0 or Fraction(size + 1, size) < Fraction(3, 2)

    possible = [n for n in range(1, min(most, layers) + 1) if fits(n)]
    many = [n for n in possible if 2 * n >= min(most, layers)] or possible[-1:]
    return min(many, key=lambda n: (unused(n), -n))
