"""The policies that are compared, methods at several budgets each, and what they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from foveate.compression.composition import find, name_and_arguments
from foveate.compression.composition import policy as policy_of
from foveate.errors import InvalidSpec
from foveate.policies.policy import Policy
from foveate.policies.spec import print_arguments, split
from foveate_lab.eval.oracle import NAME, oracle

BUDGET_BY_DEFAULT = "20%"


def separate(text: str) -> list[str]:
    """The specs of a list such as "snapkv,h2o:recent=0.25,group=max,knorm": what is no more than
    key=value belongs to the spec before it.
    """
    specs: list[str] = []
    for part in split(text, ","):
        if specs and re.match(r"\s*\w+\s*=", part):
            specs[-1] += f",{part}"
        else:
            specs.append(part.strip())
    return [spec for spec in specs if spec]


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


def contenders(methods: Sequence[str], budgets: Sequence[str]) -> list[str]:
    """The specs of all, each once; "oracle", which only a sample can make a policy of, too.

    Raises:
        FoveateError: an unknown method, a spec that does not parse, a budget that cannot be met.
    """
    specs: list[str] = []
    for method in methods:
        if is_oracle(method):
            specs += _oracles(method, budgets)
        else:
            specs += [policy.spec for policy in at_each(method, budgets)]
    return list(dict.fromkeys(specs))


def check_strictly(specs: Sequence[str]) -> None:
    """Raises InvalidBudget where a spec's budget is less than what it always keeps of any prompt
    that is longer.
    """
    for spec in specs:
        if not is_oracle(spec):
            policy_of(spec).check_strictly()


def is_oracle(spec: str) -> bool:
    """Whether only a sample can make a policy of it."""
    return spec.split(":")[0].strip() == NAME


def _oracles(spec: str, budgets: Sequence[str]) -> list[str]:
    _, arguments = name_and_arguments(spec)
    if set(arguments) - {"budget"}:
        raise InvalidSpec(f"{spec!r}: the oracle has a budget and nothing else.")
    chosen = budgets or [str(arguments.get("budget", BUDGET_BY_DEFAULT))]
    return [f"{NAME}:budget={oracle(one).amount}" for one in chosen]


def resolved(spec: str, evidence: Sequence[int]) -> Policy:
    """The policy of a contender for a sample whose answer stands on these tokens."""
    name, arguments = name_and_arguments(spec)
    return oracle(str(arguments["budget"]), evidence) if name == NAME else policy_of(spec)


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
