"""An extension of Griffe, which reads source and learns here that ``@stage`` makes a dataclass: a
stage's fields are then the parameters that its page lists.
"""

from __future__ import annotations

from typing import Any

import griffe

MAKERS = (".stage", ".prunes")
ARGUMENTS = {"frozen": "True", "kw_only": "True"}


class Stages(griffe.Extension):
    """Shows every stage as the dataclass that it is."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Adds the decorator that the class does not name itself."""
        if any(one.callable_path.endswith(MAKERS) for one in cls.decorators):
            keywords = [
                griffe.ExprKeyword(name, value, griffe.ExprName("dataclasses.dataclass"))
                for name, value in ARGUMENTS.items()
            ]
            call = griffe.ExprCall(griffe.ExprName("dataclasses.dataclass"), keywords)
            cls.decorators.append(griffe.Decorator(call, lineno=None, endlineno=None))
