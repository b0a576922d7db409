"""Griffe extension that lists a stage's fields as parameters on its page.

Griffe reads source without running it, so it does not know that ``@stage`` makes a dataclass.
"""

from __future__ import annotations

from typing import Any

import griffe

MAKERS = (".stage", ".prunes")
ARGUMENTS = {"frozen": "True", "kw_only": "True"}


class Stages(griffe.Extension):
    """Griffe extension that treats stages as dataclasses."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Add the dataclass decorator that ``@stage`` applies."""
        if any(decorator.callable_path.endswith(MAKERS) for decorator in cls.decorators):
            keywords = [
                griffe.ExprKeyword(name, value, griffe.ExprName("dataclasses.dataclass"))
                for name, value in ARGUMENTS.items()
            ]
            call = griffe.ExprCall(griffe.ExprName("dataclasses.dataclass"), keywords)
            cls.decorators.append(griffe.Decorator(call, lineno=None, endlineno=None))
