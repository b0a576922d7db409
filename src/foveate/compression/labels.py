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
    """The spec's policy at each budget, which replaces the one in it; 20 % where there is none."""
    name, arguments = name_and_arguments(spec)
    by_hand = name == "policy"
    if not by_hand and "budget" not in find(name).parameters:
        return [policy_of(spec)]
    if by_hand or "budget" in arguments:
        made = policy_of(spec)
        return [made.but(budget=budget) for budget in budgets] or [made]
    return [policy_of(spec, budget=budget) for budget in budgets or (BUDGET_BY_DEFAULT,)]


class Named(NamedTuple):
    """A spec in two columns: what keeps, and how much; "" where the spec does not say."""

    method: str
    budget: str


def named(spec: str) -> Named:
    """The spec without the amount of its budget, and that amount. The name of a budget's stage is
    part of the method: "policy:budget=pyramid(amount=20%)" at 20 % is "policy:budget=pyramid()".
    """
    name, arguments = name_and_arguments(spec)
    budget = arguments.get("budget")
    amount = getattr(budget, "amount", budget)
    if budget is amount:
        arguments.pop("budget", None)
    said = print_arguments(arguments)
    if budget is not amount:
        said = re.sub(rf"\bamount={re.escape(str(amount))},?", "", said, count=1)
    return Named(f"{name}:{said}" if said else name, "" if amount is None else str(amount))


def label(policy: Policy) -> str:
    """The policy's spec without its budget, which has a column of its own."""
    return named(policy.spec).method


def budget_of(policy: Policy) -> str | None:
    """How much the policy keeps; None for a method that has no budget, such as the full cache."""
    if policy.origin is not None and "budget" not in policy.origin.build.parameters:
        return None
    return str(policy.budget.amount)
