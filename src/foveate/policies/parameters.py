"""Types and ranges of parameters.

A method's function or a stage's dataclass declares both in one annotation, ``Annotated[float,
Range(0, 1)]``. :func:`check` compares every value with it, and :func:`describe` prints it in
errors, in ``foveate methods`` and in the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from foveate.errors import InvalidParameter

MOST = 2**31 - 1
"""Largest number of tokens, pairs or channels that a parameter can have."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, excluding these with ``above`` and ``below``."""

    low: int | float
    high: int | float
    above: bool = False
    below: bool = False
    odd: bool = False

    def __contains__(self, value: int | float) -> bool:
        above_low = self.low < value if self.above else self.low <= value
        below_high = value < self.high if self.below else value <= self.high
        return above_low and below_high and not (self.odd and value % 2 == 0)

    def __str__(self) -> str:
        start = f"above {self.low}" if self.above else f"from {self.low}"
        end = f"below {self.high}" if self.below else f"to {self.high}"
        return f"{start}{', ' if self.below else ' '}{end}"


_WHOLE = Range(-(2**63), 2**63 - 1)
_FINITE = Range(-1e30, 1e30)  # float32 can represent it, and the sum of 10^9 of them

Count = Annotated[int, Range(0, MOST)]
Positive = Annotated[int, Range(1, MOST)]
Share = Annotated[float, Range(0, 1)]
ShareBelow = Annotated[float, Range(0, 1, below=True)]
ShareBetween = Annotated[float, Range(0, 1, above=True, below=True)]
Factor = Annotated[float, Range(0, 1_000_000)]
Temperature = Annotated[float, Range(0.001, 1_000_000)]
Kernel = Annotated[int, Range(1, 4095, odd=True)]
Columns = Annotated[int, Range(1, 4096)]
"""Columns of a random matrix, which is drawn for every layer."""
Seed = Annotated[int, Range(0, 2**32 - 1)]
Recent = Count | ShareBelow
"""A number of tokens (int), or a share of the budget (float in [0, 1))."""
Window = Positive | ShareBelow
"""A number of tokens, or a share of the budget, of at least one token."""


def check(hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise InvalidParameter if a value is not of its parameter's type, or out of its range.

    ``hints`` are those of ``get_type_hints(..., include_extras=True)``. Numbers, words, literals,
    protocols and unions of these are checked.
    """
    for key, value in values.items():
        known = kinds(hints.get(key, Any))
        if type(value) is int and any(plain(kind)[0] is int for kind in known):
            # 0 is a count, not a share
            known = tuple(kind for kind in known if plain(kind)[0] is not float)
        if all(map(_checkable, known)) and not any(_takes(kind, value) for kind in known):
            raise InvalidParameter(f"{key}={short_repr(value)}: give {describe(hints[key])}.")


def describe(hint: Any) -> str:
    """Return a parameter's type and range in words; empty for a type that is not checked."""
    known = kinds(hint)
    return " or ".join(map(_words, known)) if all(map(_checkable, known)) else ""


def short_repr(value: object) -> str:
    """Return a value for an error message, shortened if it is very long."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of about {int(value.bit_length() * math.log10(2)) + 1} digits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_protocol(kind: Any) -> bool:
    """Return True if a type is a Protocol, as those of stages are."""
    return isinstance(kind, type) and bool(getattr(kind, "_is_protocol", False))


def kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def plain(kind: Any) -> tuple[Any, Range | None]:
    """Return a type without annotations, and its range if it has one."""
    if get_origin(kind) is Annotated:
        bare, *extras = get_args(kind)
        return bare, next((extra for extra in extras if isinstance(extra, Range)), None)
    return kind, {int: _WHOLE, float: _FINITE}.get(kind)


def _checkable(kind: Any) -> bool:
    bare, _ = plain(kind)
    known = bare in (int, float, str, bool, NoneType) or get_origin(bare) is Literal
    return known or is_protocol(bare)


def _takes(kind: Any, value: Any) -> bool:
    bare, limits = plain(kind)
    if get_origin(bare) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(bare))
    if isinstance(value, bool) and bare is not bool:
        return False
    if not isinstance(value, (int, float) if bare is float else bare):
        return False
    return limits is None or value in limits  # NaN is in no range


def _words(kind: Any) -> str:
    bare, limits = plain(kind)
    if get_origin(bare) is Literal:
        return f"one of {', '.join(map(repr, get_args(bare)))}"
    if limits is not None:
        what = "an odd number" if limits.odd else "an int" if bare is int else "a float"
        return f"{what} {limits}"
    if is_protocol(bare):
        return f"a stage that is a {bare.__name__}"
    return {str: "a word", bool: "true or false", NoneType: "null"}[bare]
