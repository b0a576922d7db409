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

from foveate.cache.slots import Slots, derived
from foveate.compression.byte_budget import Bytes
from foveate.compression.pipeline import protected
from foveate.errors import InvalidBudget
from foveate.policies.policy import Policy


class Budgeted(NamedTuple):
    """Slots with each row's budget, and what was asked for."""

    slots: Slots
    requested: Int[Tensor, "b"]


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
        requested = policy.amount.tokens(lengths, 0)
    else:
        requested = torch.full_like(lengths, within.tokens(lengths.tolist()))
    if strict:
        return Budgeted(slots.with_budget(_as_asked(policy, requested, lengths)), requested)
    return Budgeted(raised(slots.with_budget(requested.clamp_min(policy.least)), policy), requested)


def _as_asked(
    policy: Policy, requested: Int[Tensor, "b"], lengths: Int[Tensor, "b"]
) -> Int[Tensor, "b"]:
    """Not raised; but a row that is no longer than what is always kept is kept whole: there is
    nothing to choose from. The floor of an auto amount holds what is always kept.
    """
    if bool((requested < 1).any()):
        raise InvalidBudget(
            f"budget {policy.amount} holds no token: one token of this batch takes more over all "
            "layers. Raise it."
        )
    if policy.amount.kind == "auto":
        return requested.clamp_min(policy.least)
    return requested.where(lengths > policy.least, requested.clamp_min(policy.least))


@derived
def raised(slots: Slots, policy: Policy) -> Slots:
    """The same where budgets hold what is protected in their rows, wherever it stands."""
    tokens = slots.tokens
    if tokens is None or policy.keeps_by_position:  # its budget holds it already
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


_said: set[str] = set()  # the policies
_MOST = 1000  # of them, then anew: a service may be asked for any budget


def say_where_raised(policy: Policy, budgets: Budgeted) -> None:
    """Names the first row whose budget was raised, if one was, in the log: once in a process for
    each policy, as a service opens a block for every request.
    """
    held = budgets.slots.tokens
    if held is None or policy.amount.kind == "auto" or policy.spec in _said:
        return
    lengths = budgets.slots.lengths
    kept = held.minimum(lengths)
    rows = (kept > budgets.requested).nonzero()[:, 0].tolist()
    if not rows:
        return
    if len(_said) >= _MOST:
        _said.clear()
    _said.add(policy.spec)
    row = rows[0]
    logging.getLogger("foveate").warning(
        "%s asks for %d of the %d tokens of row %d, and always keeps %d of them (observation "
        "window and sinks count inside the budget): the budget is raised to that. Said once of "
        "this policy; session.stats tells it of every prompt (asked, held), and strict=True "
        "refuses it.%s",
        policy,
        int(budgets.requested[row]),
        int(lengths[row]),
        row,
        int(kept[row]),
        policy.amount.or_share,
    )
