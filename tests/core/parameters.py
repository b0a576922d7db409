"""Values for every parameter of every method, drawn from what its type and range say."""

from __future__ import annotations

from inspect import Parameter
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st

import foveate
from foveate.policies.method import Method
from foveate.policies.parameters import MOST, Range, kinds, plain

MANY = 30
"""The most tokens that a drawn parameter protects: the budgets that are drawn beside hold more."""

NEEDS_PROFILE = {
    name
    for name, method in foveate.METHODS.items()
    if (of := method.parameters.get("profile")) is not None and of.default is Parameter.empty
}


def of_method(method: Method) -> dict[str, st.SearchStrategy[Any]]:
    """A strategy for each parameter but the budget; files are never given."""
    return {
        key: st.none() if key == "profile" else _of_hint(hint)
        for key, hint in method.hints.items()
        if key not in ("budget", "return")
    }


def _of_hint(hint: Any) -> st.SearchStrategy[Any]:
    return st.one_of([_of_kind(*plain(kind)) for kind in kinds(hint)])


def _of_kind(bare: Any, limits: Range | None) -> st.SearchStrategy[Any]:
    if get_origin(bare) is Literal:
        return st.sampled_from(get_args(bare))
    if bare in (bool, NoneType):
        return st.none() if bare is NoneType else st.booleans()
    if bare is str:
        return st.just("")
    assert limits is not None, bare
    if bare is float:
        most = min(limits.high, 9)
        return st.floats(
            max(limits.low, -9), most, exclude_min=limits.above, exclude_max=limits.below
        )
    most = MANY if limits.high >= MOST or limits.odd else min(limits.high, MANY)
    numbers = st.integers(int(limits.low), int(most))
    return numbers.filter(lambda x: x % 2 == 1) if limits.odd else numbers
