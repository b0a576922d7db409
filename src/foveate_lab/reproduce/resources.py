"""Files of this package: experiments, and the figures that the papers print."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

Entry = Mapping[str, Any]


@cache
def toml(name: str) -> Entry:
    """Return a file of ``experiments``, its lists as tuples."""
    path = files("foveate_lab.reproduce").joinpath("experiments", f"{name}.toml")
    entry: Entry = _frozen(tomllib.loads(path.read_text("utf-8")))
    return entry


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {name: _frozen(field) for name, field in value.items()}
    return value
