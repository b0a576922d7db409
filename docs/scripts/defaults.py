"""Table of docs/defaults.md: each method's defaults, and their source.

The source comes from ``Defaults:`` in the method's docstring.
"""

from __future__ import annotations

from inspect import Parameter

import foveate
from foveate.policies.method import Method
from foveate.policies.spec import print_value

# Pooling of methods that pool but have no such parameter.
POOLS = {"david": "max", "non_causal_attention": "avg", "rkv": "max", "vase": "avg"}
SHOWN_APART = ("budget", "window", "kernel", "pool")


def table() -> str:
    """Return one row per method."""
    head = "| method | window | kernel, pooling | other defaults | from |"
    rows = [head, "|---|---|---|---|---|"]
    for name, method in foveate.METHODS.items():
        cells = (_window(method), _pooling(method), _others(method), method.docs.defaults)
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _default(method: Method, name: str) -> str:
    """Return the default as a spec writes it, or "" without such a parameter or default."""
    parameter = method.parameters.get(name)
    if parameter is None or parameter.default is Parameter.empty:
        return ""
    return print_value(parameter.default)


def _window(method: Method) -> str:
    return _default(method, "window")


def _pooling(method: Method) -> str:
    parts = _default(method, "kernel"), _default(method, "pool") or POOLS.get(method.name, "")
    return ", ".join(part for part in parts if part)


def _others(method: Method) -> str:
    found = [
        f"{name}={_default(method, name)}"
        for name in method.parameters
        if name not in SHOWN_APART and _default(method, name)
    ]
    return f"`{', '.join(found)}`" if found else ""
