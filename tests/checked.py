"""The checks of shapes and types that tests put around every function, made to cost less.

Most of what they would cost is work done again: a function that stands in another is made, and its
checks with it, whenever that one is called; and a protocol looks for each of its attributes in
every argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from beartype import beartype
from jaxtyping import install_import_hook

_made: dict[tuple[str, str, str], Any] = {}
_passed: set[tuple[type, type]] = set()


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The checks of a signature, which stands in for a function of the same name. Those of a
    function within a function are made once.
    """
    if "<locals>" not in function.__qualname__:
        return beartype(function)
    place = function.__module__, function.__qualname__, str(function.__annotations__)
    if place not in _made:
        _made[place] = beartype(function)
    return _made[place]


def install() -> None:
    """Check the library and the laboratory; call it before either is imported."""
    install_import_hook(["foveate", "foveate_lab"], "tests.checked.checked")
    _look_at_types_once()


def _look_at_types_once() -> None:
    """What satisfies a protocol, and is of a class of ours, speaks for its class."""
    kind: Any = type(Protocol)
    looked = kind.__instancecheck__

    def holds(protocol: type, one: object) -> bool:
        made = type(one)
        if (protocol, made) in _passed:
            return True
        found: bool = looked(protocol, one)
        if found and made.__module__.startswith(("foveate.", "foveate_lab.", "tests.")):
            _passed.add((protocol, made))
        return found

    kind.__instancecheck__ = holds
