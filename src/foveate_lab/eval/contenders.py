"""Policies that an evaluation compares: methods at several budgets each, and the oracle."""

from __future__ import annotations

import re
from collections.abc import Sequence

from foveate.compression.composition import name_and_arguments
from foveate.compression.composition import policy as policy_of
from foveate.compression.labels import at_each
from foveate.defaults import BUDGET_BY_DEFAULT
from foveate.errors import InvalidSpec
from foveate.policies.policy import Policy
from foveate.policies.spec import split
from foveate_lab.eval.oracle import NAME, oracle


def separate(text: str) -> list[str]:
    """Split a list of specs such as "snapkv,h2o:recent=0.25,group=max,knorm".

    A part that is only key=value belongs to the spec before it.
    """
    specs: list[str] = []
    for part in split(text, ","):
        if specs and re.match(r"\s*\w+\s*=", part):
            specs[-1] += f",{part}"
        else:
            specs.append(part.strip())
    return [spec for spec in specs if spec]


def contenders(methods: Sequence[str], budgets: Sequence[str]) -> list[str]:
    """Return the specs of all methods at all budgets, without duplicates. "oracle" stays a spec,
    because its policy depends on the sample.

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
    """Raise InvalidBudget if a spec's budget is less than what it always keeps of a long prompt."""
    for spec in specs:
        if not is_oracle(spec):
            policy_of(spec).check_strictly()


def is_oracle(spec: str) -> bool:
    """Check if a spec is the oracle's, whose policy depends on the sample."""
    return spec.split(":")[0].strip() == NAME


def _oracles(spec: str, budgets: Sequence[str]) -> list[str]:
    _, arguments = name_and_arguments(spec)
    if set(arguments) - {"budget"}:
        raise InvalidSpec(f"{spec!r}: the oracle has a budget and nothing else.")
    chosen = budgets or [str(arguments.get("budget", BUDGET_BY_DEFAULT))]
    return [f"{NAME}:budget={oracle(budget).amount}" for budget in chosen]


def resolved(spec: str, evidence: Sequence[int]) -> Policy:
    """Return the policy of a spec for a sample with these evidence tokens."""
    name, arguments = name_and_arguments(spec)
    return oracle(str(arguments["budget"]), evidence) if name == NAME else policy_of(spec)
