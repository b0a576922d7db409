"""Names that stood among the shared stages before: found at home for a while, with a warning."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from foveate.errors import deprecated

GONE = "0.3"


def moved(old: str, **homes: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module: each name that stood in it, with the module that it is in
    now, which is imported when the name is asked for: stages know no method.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        deprecated(f"{old}.{name}", f"{homes[name]}.{name}", GONE)
        return getattr(import_module(homes[name]), name)

    return find
