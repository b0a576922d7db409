"""What a benchmark takes beside its folder, ``NAME(key=value,...)=FOLDER``, and a drawn task alone.

A reader's own options are its keyword-only parameters, and their types say what they take; every
task has those of :data:`GENERAL` as well. Where a protocol can be departed from, there is an
option for it, and the task's name, which every row has, says which were given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, get_type_hints

from foveate.errors import InvalidParameter, suggest
from foveate.policies.parameters import Positive, check, short_repr
from foveate.policies.spec import print_arguments
from foveate_lab.eval.pixels import Pixels

GENERAL: dict[str, Any] = {"longest": Positive, "min_pixels": Positive, "max_pixels": Positive}
"""Tokens of an answer; and pixels of an image, for processors that bound them."""


class Options(NamedTuple):
    """Those of a reader, those of every benchmark, and how both are written."""

    own: Mapping[str, Any]
    general: Mapping[str, Any]
    written: str

    @property
    def pixels(self) -> Pixels:
        """The bounds of an image."""
        return Pixels(self.general.get("min_pixels"), self.general.get("max_pixels"))


def parameters(read: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """A reader's own options, with their defaults."""
    declared = inspect.signature(read).parameters
    return {name: one for name, one in declared.items() if one.kind is one.KEYWORD_ONLY}


def types(read: Callable[..., Any]) -> dict[str, Any]:
    """What a reader's own options take."""
    hints = get_type_hints(read.func if isinstance(read, partial) else read, include_extras=True)
    return {name: hints[name] for name in parameters(read)}


def options(name: str, read: Callable[..., Any], given: Mapping[str, Any]) -> Options:
    """The options that were given, without those that are as they would have been anyway.

    Raises:
        InvalidParameter: there is no such option, or it does not take such a value.
    """
    own, known = parameters(read), {**types(read), **GENERAL}
    for key in given:
        if key not in known:
            raise InvalidParameter(f"{name} has no option {short_repr(key)}. {suggest(key, known)}")
    check(known, given)
    least, most = given.get("min_pixels"), given.get("max_pixels")
    if least and most and least > most:
        raise InvalidParameter(f"{name}: min_pixels={least} is more than max_pixels={most}.")
    changed = {
        key: value for key, value in given.items() if key in GENERAL or own[key].default != value
    }
    ordered = {key: changed[key] for key in known if key in changed}
    return Options(
        {key: value for key, value in ordered.items() if key in own},
        {key: value for key, value in ordered.items() if key in GENERAL},
        f"({print_arguments(ordered)})" if ordered else "",
    )


def whole_numbers(name: str, text: str | int, most: int, least: int = 0) -> list[int]:
    """Those of an option that lists them, "1000/2000".

    Raises:
        InvalidParameter: one is none, or not from ``least`` to ``most``.
    """
    parts = str(text).split("/")
    if not all(part.isdecimal() and least <= int(part) <= most for part in parts):
        within = f"from {least} to {most}" if least else f"up to {most}"
        raise InvalidParameter(
            f"{name}={text!r}: give whole numbers {within}, with a stroke between them."
        )
    return [int(part) for part in parts]
