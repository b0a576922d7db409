"""One spec at several budgets, and the labels of specs in tables: a method and a budget."""

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
    """Return the spec's policy once per budget, which replaces the spec's own budget.

    Without any ``budgets``, the only policy has the spec's own budget, or 20 % if the spec has
    none. A method without a parameter ``budget``, such as ``full``, always gives one policy.
    """
    name, arguments = name_and_arguments(spec)
    lists_stages = name == "policy"  # "policy:score=...,budget=...", without a method
    if not lists_stages and "budget" not in find(name).parameters:
        return [policy_of(spec)]
    if lists_stages or "budget" in arguments:
        policy = policy_of(spec)
        # but() replaces only the amount: a budget stage, such as pyramid(), stays
        return [policy.but(budget=budget) for budget in budgets] or [policy]
    return [policy_of(spec, budget=budget) for budget in budgets or (BUDGET_BY_DEFAULT,)]


class Named(NamedTuple):
    """Method and budget of a spec, for two columns of a table. A spec without budget has ""."""

    method: str
    budget: str


def named(spec: str) -> Named:
    """Split a spec into its method, with all other parameters, and the amount of its budget.

    A budget stage stays with the method: "policy:budget=pyramid(amount=20%,beta=10)" becomes
    "policy:budget=pyramid(beta=10)" and "20%".
    """
    name, arguments = name_and_arguments(spec)
    budget = arguments.get("budget")  # an amount or a stage with an amount
    amount = getattr(budget, "amount", budget)
    is_stage = budget is not amount
    if not is_stage:
        arguments.pop("budget", None)
    printed = print_arguments(arguments)
    if is_stage:
        printed = re.sub(rf"\bamount={re.escape(str(amount))},?", "", printed, count=1)
    return Named(f"{name}:{printed}" if printed else name, "" if amount is None else str(amount))


def label(policy: Policy) -> str:
    """Return the policy's spec without the amount of its budget, which has its own column."""
    return named(policy.spec).method


def budget_of(policy: Policy) -> str | None:
    """Return the amount of the policy's budget, e.g. "20%".

    None for a method without a parameter ``budget``, such as ``full``.
    """
    if policy.origin is not None and "budget" not in policy.origin.build.parameters:
        return None
    return str(policy.budget.amount)
