"""Each row's budget: what is asked for, and what it is raised to where a policy always keeps more.

Sinks, windows, recent tokens and text that must stay are kept whatever is asked for; a budget that
does not hold them is raised to them, row by row, or, if that is ``strict``, refused.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.core.byte_budget import Bytes
from foveate.core.pipeline import protected
from foveate.core.policy import Policy
from foveate.core.protocols import keeps_by_position
from foveate.core.slots import Slots, derived


class Budgeted(NamedTuple):
    """Slots with each row's budget, and what was asked for."""

    slots: Slots
    asked: Int[Tensor, "b"]


@derived
def budgeted(
    slots: Slots, policy: Policy, within: Bytes | None, to_read: int, strict: bool
) -> Budgeted:
    """The budgets of a prompt of which ``to_read`` tokens are still to come. One in bytes is
    ``within`` them.

    Raises:
        InvalidBudget: bytes that hold less than what is always kept, and this is strict.
    """
    lengths = slots.lengths + to_read
    if within is None:
        asked = policy.amount.tokens(lengths, 0)
    else:
        asked = torch.full_like(lengths, within.tokens(lengths.tolist()))
    if strict:
        return Budgeted(slots.with_budget(policy.unraised(asked, lengths)), asked)
    return Budgeted(raised(slots.with_budget(policy.raised(asked)), policy), asked)


@derived
def raised(slots: Slots, policy: Policy) -> Slots:
    """The same where budgets hold what is protected in their rows, wherever it stands."""
    tokens = slots.tokens
    if tokens is None or keeps_by_position(policy.select):  # its budget holds it already
        return slots
    if bool((_least(slots, policy) <= tokens).all()):
        return slots
    # what is protected grows with the budget where that is a share of it, a token at most for each
    low, high = tokens, tokens.maximum(slots.available.amax(-1))
    while bool((low < high).any()):
        middle = (low + high) // 2
        holds = _least(slots.with_budget(middle), policy) <= middle
        low, high = torch.where(holds, low, middle + 1), torch.where(holds, middle, high)
    return slots.with_budget(high)


def _least(slots: Slots, policy: Policy) -> Int[Tensor, "b"]:
    return protected(slots, policy).counts.amax(-1)


class Notice:
    """Says once in the log that a budget was raised: of all prompts of a block."""

    def __init__(self) -> None:
        self.said = False

    def __deepcopy__(self, memo: dict[int, object]) -> Notice:
        return self

    def say(self, policy: Policy, found: Budgeted) -> None:
        """Names the first row whose budget was raised, if one was."""
        held = found.slots.tokens
        if self.said or held is None or policy.amount.kind == "auto":
            return
        lengths = found.slots.lengths
        rows = zip(found.asked.tolist(), held.minimum(lengths).tolist(), strict=True)
        for row, (asked, kept) in enumerate(rows):
            if kept > asked:
                self.said = True
                logging.getLogger("foveate").warning(
                    "%s asks for %d of the %d tokens of row %d, and always keeps %d of them "
                    "(observation window and sinks count inside the budget): the budget is raised "
                    "to that. Said once; session.stats tells it of every prompt (asked, held), and "
                    "strict=True refuses such budgets.",
                    policy,
                    asked,
                    int(lengths[row]),
                    row,
                    kept,
                )
                return
