"""The public surface as a text: every name, what it is called with, and the defaults.

    python -m tests.surface.listing --write

stores it in tests/surface/public.txt, if CHANGELOG.md says under "Unreleased" what has changed.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import foveate
from foveate import errors
from foveate.cli.app import Deferred, commands
from foveate.policies.method import Method
from foveate.policies.spec import STAGES, print_value

STORED = Path(__file__).with_name("public.txt")
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def listing() -> list[str]:
    """A line for every name, in order."""
    homes = (
        "foveate.policies.",
        "foveate.compression.",
        "foveate.methods.",
        "foveate.stages.",
    )  # not those of evaluations
    own = [name for name in STAGES if STAGES[name].__module__.startswith(homes)]
    return [
        *(line for name in sorted(foveate.__all__) for line in _of(name, getattr(foveate, name))),
        *(f"foveate.errors.{name}" for name in sorted(_errors())),
        *(f"stage {name}({_fields(STAGES[name])})" for name in sorted(own)),
        *(line for name in sorted(commands()) for line in _command(name)),
    ]


def _errors() -> list[str]:
    of_ours = inspect.getmembers(errors, lambda one: isinstance(one, type))
    return [name for name, one in of_ours if issubclass(one, errors.FoveateError)]


def _of(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, Method):
        yield f"foveate.{name}({_arguments(value.signature)})"
    elif inspect.ismodule(value):
        shown = value.__all__ if name == "analysis" else ()
        yield f"foveate.{name}"
        for inner in sorted(shown):
            yield from _of(f"{name}.{inner}", getattr(value, inner))
    elif isinstance(value, type) and not issubclass(value, Exception):
        yield f"foveate.{name}({_arguments(inspect.signature(value))})"
        for inner in sorted(_members(value)):
            yield f"foveate.{name}.{inner}"
    elif inspect.isroutine(value):
        yield f"foveate.{name}({_arguments(inspect.signature(value))})"
    else:
        yield f"foveate.{name}"


def _members(cls: type) -> Iterator[str]:
    """Its own public methods with their arguments, properties and fields."""
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name in {*vars(cls), *fields}:
        if name.startswith("_"):
            continue
        value = inspect.getattr_static(cls, name, None)
        value = getattr(value, "__func__", value)
        if inspect.isfunction(value):
            yield f"{name}({_arguments(inspect.signature(value))})"
        else:
            yield name


def _arguments(signature: inspect.Signature) -> str:
    """Names, kinds and defaults: what a call depends on."""
    bare = [
        p.replace(annotation=inspect.Parameter.empty, default=_default(p.default))
        for p in signature.parameters.values()
        if p.name != "self"
    ]
    return str(inspect.Signature(bare))[1:-1]


class _Printed:
    def __init__(self, value: Any):
        self.text = print_value(value)

    def __repr__(self) -> str:
        return self.text


def _default(value: Any) -> Any:
    return value if value is inspect.Parameter.empty else _Printed(value)


def _fields(stage: type) -> str:
    fields = [f for f in dataclasses.fields(stage) if f.init]  # type: ignore[arg-type]
    return ", ".join(
        f.name if f.default is dataclasses.MISSING else f"{f.name}={print_value(f.default)}"
        for f in fields
    )


def _command(name: str) -> Iterator[str]:
    """The command's arguments and options, by the names that are typed."""
    command = Deferred()[name]
    assert isinstance(command, typer.core.TyperCommand)
    for parameter in command.params:
        said = "/".join(parameter.opts) if parameter.opts[0].startswith("-") else parameter.name
        yield f"$ foveate {name} {said}"


def changed(old: list[str], new: list[str]) -> list[str]:
    """Lines that went, with a minus, and those that came, with a plus."""
    found = difflib.unified_diff(old, new, lineterm="", n=0)
    return [line for line in found if re.match(r"[+-][^+-]", line) or re.match(r"[+-]-?\$", line)]


def unsaid(changes: list[str], unreleased: str) -> list[str]:
    """Those changes whose name the changelog does not have."""
    return [line for line in changes if _name(line) not in unreleased]


def _name(line: str) -> str:
    """What the changelog has to name: the last part of a name, an option, a stage, a method."""
    said = line[1:].removeprefix("stage ").split("(")[0]
    return said.split(" ")[-1].split("/")[0].split(".")[-1]


def unreleased() -> str:
    """What the changelog says of the next version."""
    parts = re.split(r"^## ", CHANGELOG.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return next((part for part in parts if part.startswith("Unreleased")), "")


def main() -> None:
    """Prints what has changed; with ``--write`` stores it, if the changelog says it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="store it")
    write = parser.parse_args().write
    old = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else listing()
    new = listing()
    changes = changed(old, new)
    print("\n".join(changes))
    if write:
        if missing := unsaid(changes, unreleased()):
            names = ", ".join(dict.fromkeys(map(_name, missing)))
            sys.exit(f"CHANGELOG.md does not say what became of: {names}. Write it there first.")
        STORED.write_text("\n".join(new) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
