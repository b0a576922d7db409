"""CaM's merging, pair by pair, as its equations have it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor


def chance(
    attention: Sequence[float], evicted: int, kept: Sequence[int], into: int
) -> tuple[float, list[int]]:
    """Of merging one pair, clamp(A_i / mean(A_j ... A_j+m), 0, 1), and the places j ... j+m."""
    after = [j for j in kept if j > evicted][:into]
    if not after:
        return 0.0, []
    mean = sum(attention[j] for j in after) / len(after)
    if mean == 0:
        return float(attention[evicted] > 0), after
    return min(1.0, attention[evicted] / mean), after


def merge(
    v: Float[Tensor, "t e"],
    kept: Sequence[int],
    into: int,
    attention: Sequence[float] | None = None,
    drawn: Callable[[int], float] = lambda place: 0.0,
) -> Float[Tensor, "t e"]:
    """One head's values; without attention every pair merges."""
    found = v.double().clone()
    for i in set(range(len(v))) - set(kept):
        said = [1.0] * len(v) if attention is None else attention
        probability, after = chance(said, i, kept, into)
        if after and drawn(i) < probability:
            for j in after:
                found[j] += v[i].double() / len(after)
    return found
