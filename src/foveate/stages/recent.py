"""Last tokens of a prompt: a number of them, or a share of the budget."""

from __future__ import annotations

from fractions import Fraction

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.slots import Slots, derived
from foveate.errors import InvalidParameter
from foveate.policies.parameters import MOST, Recent

DIGITS = 10**9


def recent_tokens(recent: Recent, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Return the number of last tokens for budgets of ``tokens`` per row, shares rounded down."""
    if isinstance(recent, int):
        return tokens.new_full(tokens.shape, recent)
    return part(tokens, recent)


def holding(others: int, recent: Recent) -> int:
    """Return the smallest budget that holds ``others`` tokens and the last ``recent`` ones.

    Where ``recent`` is a share, a larger budget holds more recent tokens.
    """
    if isinstance(recent, int):
        return others + recent
    rest = 1 - Fraction(str(recent))  # floor(share * T) + others <= T, solved for whole T
    return min(MOST, int((others - 1) / rest) + 1) if others else 0


def part(counts: Int[Tensor, "*x"], share: float | Fraction) -> Int[Tensor, "*x"]:
    """Return a share of each count, as the share is written (0.29 of 100 is 29), rounded down.

    Products stay in 64 bits: a share of more than nine digits is split into two parts of nine
    digits.
    """
    counts = counts.clamp_max(MOST)
    exact = share if isinstance(share, Fraction) else Fraction(str(share))
    if exact.denominator <= DIGITS:
        return counts * exact.numerator // exact.denominator
    first = int(exact * DIGITS)
    second = int((exact * DIGITS - first) * DIGITS)
    return (counts * first + counts * second // DIGITS) // DIGITS


def most_recent(recent: Recent, tokens: int) -> int:
    """Return the number of last tokens for one budget; at least 1."""
    if isinstance(recent, int):
        return max(1, recent)
    budget = torch.tensor([tokens], dtype=torch.long, device="cpu")
    return max(1, int(recent_tokens(recent, budget)))


@derived
def is_recent(slots: Slots, recent: Recent) -> Bool[Tensor, "b h n"]:
    """Mark the slots of the last tokens."""
    first = (slots.lengths - recent_tokens(recent, budget_of(slots, recent)))[:, None, None]
    return slots.where(lambda pos: pos >= first)


@derived
def before(slots: Slots, recent: Recent) -> Float[Tensor, "b h n"]:
    """Return 1 before the last tokens and 0 at them, as a factor.

    A product takes a third of the time of masked_fill.
    """
    return (~is_recent(slots, recent)).float()


def budget_of(slots: Slots, recent: Recent) -> Int[Tensor, "b"]:
    """Return each row's budget, which is only needed where ``recent`` is a share.

    Raises:
        InvalidParameter: a share, and the slots have no budget.
    """
    if slots.tokens is None and isinstance(recent, float):
        raise InvalidParameter(
            f"a window of {recent} is a share of the budget, and this layer has no budget: give "
            "Slots(tokens=...), or a window in tokens (int)."
        )
    return slots.lengths if slots.tokens is None else slots.tokens
