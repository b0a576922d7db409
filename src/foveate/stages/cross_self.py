"""Where CSP's selection and merge stood before: they are in the method's file."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from foveate.errors import deprecated

_HOME = "foveate.methods.csp"  # a name, as stages know no method
_MOVED = ("CrossSelf", "Doubles")


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    deprecated(f"{__name__}.{name}", f"{_HOME}.{name}", "0.3")
    return getattr(import_module(_HOME), name)
