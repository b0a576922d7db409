"""Policies as text: ``snapkv:budget=20%,select=top_k(recent=16)``.

A spec is a method's name, a colon, and ``key=value`` pairs. A value is a number, an amount (20%,
64MB), true, false, null, a word, a 'quoted string', or a stage: ``name(key=value, ...)``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from foveate.core.errors import InvalidParameter, InvalidSpec, UnknownMethod, suggest

SLOTS = ("score", "budget", "select", "merge", "when", "attend", "store")
STAGES: dict[str, type] = {}
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
T = TypeVar("T", bound=type)


def stage(name: str) -> Callable[[T], T]:
    """Registers a stage class (a frozen, keyword-only dataclass) under its name in specs."""

    def register(cls: T) -> T:
        cls.spec_name = name  # type: ignore[attr-defined]
        STAGES[name] = cls
        return cls

    return register


def print_arguments(arguments: Mapping[str, Any]) -> str:
    """``a=1,b=top_k(recent=16)``, in the order given."""
    return ",".join(f"{key}={print_value(value)}" for key, value in arguments.items())


def print_value(value: Any) -> str:
    """One value as it stands in a spec. Stages print the fields that differ from the default."""
    if hasattr(value, "spec_name"):
        return f"{value.spec_name}({print_arguments(_set_fields(value))})"
    for word, meaning in _WORDS.items():
        if value is meaning:
            return word
    if isinstance(value, str) and (
        not value or parse_value_safely(value) != value or re.search(r"[\s,=()']", value)
    ):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def parse_value_safely(text: str) -> Any:
    """The value that the bare text would read as, or None where it does not parse."""
    try:
        return parse_value(text)
    except (InvalidSpec, UnknownMethod):
        return None


def parse_arguments(text: str) -> dict[str, Any]:
    """The ``key=value`` pairs of a spec.

    Raises:
        InvalidSpec: a pair without "=", a key given twice, an unclosed parenthesis or quote.
        UnknownMethod: a stage that does not exist.
    """
    arguments: dict[str, Any] = {}
    for part in (part.strip() for part in split(text, ",") if part.strip()):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier() or not value.strip():
            raise InvalidSpec(f"{part!r} is not of the form key=value.")
        if key in arguments:
            raise InvalidSpec(f"{key!r} is given twice in {text!r}.")
        arguments[key] = parse_value(value)
    return arguments


def parse_value(text: str) -> Any:
    """One value: number, word, string, stage, or the text itself (amounts are read later)."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    if call := re.fullmatch(r"([A-Za-z_]\w*)\((.*)\)", text, re.DOTALL):
        return make_stage(call[1], parse_arguments(call[2]))
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def check_plain(hints: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuses words where numbers belong: values whose hint is made of int, float, str and bool."""
    for key, value in arguments.items():
        hint = hints.get(key)
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if get_origin(hint) is Literal:
            if value not in get_args(hint):
                raise InvalidParameter(f"{key}={value!r}: choose one of {get_args(hint)}.")
        elif all(kind in (int, float, str, bool) for kind in kinds):
            allowed = (*kinds, int) if float in kinds else kinds
            if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
                names = " or ".join(kind.__name__ for kind in kinds)
                raise InvalidParameter(f"{key}={value!r} is no {names}.")


def make_stage(name: str, arguments: Mapping[str, Any]) -> Any:
    """The stage of that name.

    Raises:
        UnknownMethod: no such stage.
        InvalidSpec: the stage has no such parameter, or lacks one.
    """
    if name not in STAGES:
        raise UnknownMethod(f"no stage named {name!r}. {suggest(name, STAGES)}")
    fields = [f for f in dataclasses.fields(STAGES[name]) if f.init]
    known = [f.name for f in fields]
    for key in arguments:
        if key not in known:
            raise InvalidSpec(f"{name} has no parameter {key!r}. {suggest(key, known)}")
    for f in fields:
        optional = (
            f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        )
        if f.name not in arguments and not optional:
            raise InvalidSpec(f"{name} needs {f.name!r}: {name}({f.name}=...).")
    check_plain(get_type_hints(STAGES[name]), arguments)
    inner = {"of": make_stage(arguments["of"], {})} if isinstance(arguments.get("of"), str) else {}
    return STAGES[name](**{**arguments, **inner})


def _set_fields(value: Any) -> dict[str, Any]:
    return {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)
        if f.init and (f.default is dataclasses.MISSING or getattr(value, f.name) != f.default)
    }


def split(text: str, separator: str) -> list[str]:
    """Splits at the separators that stand outside parentheses and quotes.

    Raises:
        InvalidSpec: an unclosed parenthesis or quote.
    """
    parts, depth, quoted, current, escaped = [], 0, False, "", False
    for char in text:
        if char == "'" and not escaped:
            quoted = not quoted
        depth += 0 if quoted else (char == "(") - (char == ")")
        escaped = char == "\\" and not escaped
        if char == separator and depth == 0 and not quoted:
            parts.append(current)
            current = ""
        else:
            current += char
    if depth or quoted:
        raise InvalidSpec(f"{text!r} has an unclosed {'quote' if quoted else 'parenthesis'}.")
    return [*parts, current]
