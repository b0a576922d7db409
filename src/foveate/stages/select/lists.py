"""Ranked lists: where each slot stands in the order of a score."""

from __future__ import annotations

from fractions import Fraction

from jaxtyping import Bool, Float, Int
from torch import Tensor


def places(
    scores: Float[Tensor, "b h n"], free: Bool[Tensor, "b h n"], nowhere: int
) -> Int[Tensor, "b h n"]:
    """Each slot's place in the list of the highest scores, from 0; of equal ones the earlier is
    first. What is not ``free`` or scores zero is in no list: ``nowhere``.
    """
    listed = free & (scores > 0)
    order = scores.masked_fill(~listed, -1.0).argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1).masked_fill(~listed, nowhere)


def share(count: Int[Tensor, "b h"], of: float) -> Int[Tensor, "b h"]:
    """The share of a count, as written (0.29 of 100 is 29), rounded down."""
    exact = Fraction(str(of))
    return count * exact.numerator // exact.denominator
