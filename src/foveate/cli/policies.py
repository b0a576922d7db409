"""The policies that ``foveate run`` compares."""

from __future__ import annotations

from collections.abc import Sequence

from foveate.core.composition import policy as policy_of
from foveate.core.policy import Policy
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
