"""The demo models with their prompts and figures, which the library can do without."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from foveate.errors import MissingPackage


def demo(module: str = "") -> Any:
    """Return the demo's package, or a module of it such as "album".

    Raises:
        MissingPackage: ``foveate-demo`` is not installed.
    """
    try:
        return import_module(f"foveate_demo.{module}" if module else "foveate_demo")
    except ModuleNotFoundError as error:
        if error.name != "foveate_demo":
            raise
        raise MissingPackage("the demo model", "foveate-demo", "demo") from error
