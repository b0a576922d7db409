"""The policies that ``foveate run`` compares, and what their rows are called."""

from __future__ import annotations

from collections.abc import Sequence

from foveate.core.amount import Amount
from foveate.core.composition import policy as policy_of
from foveate.core.policy import Policy
from foveate.core.spec import print_arguments
from foveate.eval.contenders import at_each

METHODS_BY_DEFAULT = ("snapkv", "lookm", "mixkv")


def policies(specs: Sequence[str], budgets: Sequence[str]) -> list[Policy]:
    """The full cache, then each spec at each budget; equal ones once.

    Budgets given replace those in the specs. A spec without a budget gets 20 % if none is given.

    Raises:
        FoveateError: an unknown method, a spec that does not parse, a budget that cannot be met.
    """
    found = [policy_of("full")]
    for spec in specs or METHODS_BY_DEFAULT:
        found += at_each(spec, budgets)
    return list({policy.spec: policy for policy in found}.values())


def label(policy: Policy) -> str:
    """The policy's spec without its budget, which has a column of its own."""
    if policy.origin is None:
        return policy.spec
    given = policy.origin.build.given(policy.origin.arguments) | dict(policy.origin.overrides)
    rest = {key: value for key, value in given.items() if not isinstance(value, Amount)}
    return f"{policy.name}:{print_arguments(rest)}" if rest else policy.name


def budget_of(policy: Policy) -> str | None:
    """How much the policy keeps; None for a method that has no budget, such as the full cache."""
    if policy.origin is not None and "budget" not in policy.origin.build.parameters:
        return None
    return str(policy.budget.amount)
