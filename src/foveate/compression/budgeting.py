"""Each row's budget: as requested, or raised if the policy always keeps more.

Sinks, windows, recent tokens and protected text are always kept. A smaller budget is raised to
their number, row by row, or refused with ``strict``.
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
    """Slots with each row's budget, and the budgets as requested."""

    slots: Slots
    requested: Int[Tensor, "b"]


@derived
def budgeted(
    slots: Slots, policy: Policy, within: Bytes | None, to_read: int, strict: bool
) -> Budgeted:
    """Return the budgets of a prompt of which ``to_read`` tokens are still to come.

    ``within`` are the bytes of a budget in bytes.

    Raises:
        InvalidBudget: with ``strict``, the bytes do not hold one token.
    """
    lengths = slots.lengths + to_read
    if within is None:
        requested = policy.amount.tokens(lengths, 0)
    else:
        requested = torch.full_like(lengths, within.tokens(lengths.tolist()))
    if strict:
        return Budgeted(slots.with_budget(_not_raised(policy, requested, lengths)), requested)
    return Budgeted(raised(slots.with_budget(requested.clamp_min(policy.least)), policy), requested)


def _not_raised(
    policy: Policy, requested: Int[Tensor, "b"], lengths: Int[Tensor, "b"]
) -> Int[Tensor, "b"]:
    """Return the budget without raising it.

    Rows that are no longer than what is always kept are kept completely: there is no choice. An
    auto amount's floor includes what is always kept.
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
    """Return the slots with budgets raised to the protected slots of each row."""
    tokens = slots.tokens
    if tokens is None or policy.keeps_by_position:  # budgeted() raised it
        return slots
    if bool((_least(slots, policy) <= tokens).all()):
        return slots
    # Bisection works: protection may grow with the budget, by at most a token per token.
    low, high = tokens, tokens.maximum(slots.available.amax(-1))
    while bool((low < high).any()):
        middle = (low + high) // 2
        is_enough = _least(slots.with_budget(middle), policy) <= middle
        low, high = torch.where(is_enough, low, middle + 1), torch.where(is_enough, middle, high)
    return slots.with_budget(high)


def _least(slots: Slots, policy: Policy) -> Int[Tensor, "b"]:
    return protected(slots, policy).counts.amax(-1)


ADVICE = (
    " session.stats has both numbers of every prompt (asked, held); strict=True raises an error "
    "instead."
)
"""End of the warning for Python programs; the command line has its own."""
_warned: set[str] = set()  # specs of policies
_LIMIT = 1000  # then it is cleared: a service may get any number of different budgets


def warn_where_raised(policy: Policy, budgets: Budgeted) -> None:
    """Log a warning that names the first row whose budget was raised, if there is one.

    It appears once per process and policy, because a service opens a ``compress()`` per request.
    """
    tokens = budgets.slots.tokens
    if tokens is None or policy.amount.kind == "auto" or policy.spec in _warned:
        return
    lengths = budgets.slots.lengths
    kept = tokens.minimum(lengths)
    rows = (kept > budgets.requested).nonzero()[:, 0].tolist()
    if not rows:
        return
    if len(_warned) >= _LIMIT:
        _warned.clear()
    _warned.add(policy.spec)
    row = rows[0]
    logging.getLogger("foveate").warning(
        "%s asks for %d of the %d tokens of row %d, but always keeps %d of them (observation "
        "window and sinks count inside the budget), so its budget is raised to that. This warning "
        f"appears once per policy.{ADVICE}%s",
        policy,
        int(budgets.requested[row]),
        int(lengths[row]),
        row,
        int(kept[row]),
        policy.amount.or_share,
    )
