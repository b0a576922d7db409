"""Specs at several budgets, and their labels in tables: a method and a budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from foveate.compression.composition import find, name_and_arguments
from foveate.compression.composition import policy as policy_of
from foveate.defaults import BUDGET_BY_DEFAULT
from foveate.policies.policy import Policy
from foveate.policies.spec import print_arguments


def at_each(spec: str, budgets: Sequence[str]) -> list[Policy]:
    """Return the spec's policy at each budget instead of its own; at 20 % if there is none."""
    name, arguments = name_and_arguments(spec)
    by_hand = name == "policy"
    if not by_hand and "budget" not in find(name).parameters:
        return [policy_of(spec)]
    if by_hand or "budget" in arguments:
        policy = policy_of(spec)
        return [policy.but(budget=budget) for budget in budgets] or [policy]
    return [policy_of(spec, budget=budget) for budget in budgets or (BUDGET_BY_DEFAULT,)]


class Named(NamedTuple):
    """A spec in two columns: its method, and the amount of its budget or an empty text."""

    method: str
    budget: str


def named(spec: str) -> Named:
    """Split a spec into its method and the amount of its budget.

    The name of a budget's stage is part of the method: "policy:budget=pyramid(amount=20%)" becomes
    "policy:budget=pyramid()" and "20%".
    """
    name, arguments = name_and_arguments(spec)
    budget = arguments.get("budget")
    amount = getattr(budget, "amount", budget)
    if budget is amount:
        arguments.pop("budget", None)
    printed = print_arguments(arguments)
    if budget is not amount:
        printed = re.sub(rf"\bamount={re.escape(str(amount))},?", "", printed, count=1)
    return Named(f"{name}:{printed}" if printed else name, "" if amount is None else str(amount))


def label(policy: Policy) -> str:
    """Return the policy's spec without its budget, which has a column of its own."""
    return named(policy.spec).method


def budget_of(policy: Policy) -> str | None:
    """Return the policy's amount; None for a method without a budget, such as the full cache."""
    if policy.origin is not None and "budget" not in policy.origin.build.parameters:
        return None
    return str(policy.budget.amount)
