"""Policies as text: ``snapkv:budget=20%,select=top_k(recent=16)``.

A spec is a method's name, a colon, and ``key=value`` pairs. A value is a number, an amount (20%,
64MB, auto(0.98)), true, false, null, a word, a 'quoted string', or a stage: ``name(key=value)``.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar, dataclass_transform, get_type_hints

from foveate.errors import InvalidParameter, InvalidSpec, UnknownMethod, suggest
from foveate.policies.parameters import check, is_protocol, short_repr
from foveate.policies.registry import Registry, load_own_before

SLOTS = ("score", "budget", "select", "merge", "when", "attend", "store")
"""Stages that every policy has."""
EVERY_SLOT = ("prune", *SLOTS)
"""All stages, including the optional one."""
STAGES: Registry[type] = Registry()
LONGEST, DEEPEST = 10_000, 32  # limits: letters of a spec, nested parentheses
_WHOLE = re.compile(r"[+-]?[0-9]{1,1000}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def stage(name: str, **traits: bool | str | int) -> Callable[[T], T]:
    """Turn a class into a stage: a frozen, keyword-only dataclass, which specs find by its name.

    Its fields are checked at every construction: see :mod:`foveate.policies.parameters`. ``traits``
    are facts about it, such as ``head_by_head=True``: see :mod:`foveate.policies.traits`.
    """

    def register(cls: T) -> T:
        load_own_before(cls.__module__)
        if "__dataclass_fields__" not in vars(cls):
            dataclasses.dataclass(frozen=True, kw_only=True)(cls)  # in place
        for trait, value in (traits | {"spec_name": name}).items():
            setattr(cls, trait, value)
        STAGES[name] = _checked(cls)
        return cls

    return register


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _checked(cls: T) -> T:
    fill: Any = cls.__init__  # type: ignore[misc]

    @functools.wraps(fill)
    def init(self: Any, *args: Any, **values: Any) -> None:
        if args:
            name = cls.__name__
            raise InvalidParameter(
                f"{name} takes its parameters by name, not {short_repr(args[0])}."
            )
        check(_hints(cls), values)
        fill(self, **values)

    cls.__init__ = init  # type: ignore[misc]
    return cls


def print_arguments(arguments: Mapping[str, Any]) -> str:
    """Print ``a=1,b=top_k(recent=16)``, in the order of ``arguments``."""
    return ",".join(f"{key}={print_value(value)}" for key, value in arguments.items())


def print_value(value: Any) -> str:
    """Print a value for a spec. Stages print the fields that differ from the default."""
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
    """Parse the bare text; None if it does not parse."""
    try:
        return parse_value(text)
    except (InvalidSpec, UnknownMethod):
        return None


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the ``key=value`` pairs of a spec.

    Raises:
        InvalidSpec: a pair lacks "=", a key appears twice, or a parenthesis or quote is not closed.
        UnknownMethod: a stage does not exist.
    """
    arguments: dict[str, Any] = {}
    for part in (part.strip() for part in split(text, ",") if part.strip()):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier() or not value.strip():
            raise InvalidSpec(
                f"{short_repr(part)} is not of the form key=value.{_suggestion(part)}"
            )
        if key in arguments:
            raise InvalidSpec(f"{short_repr(key)} is given twice in {short_repr(text)}.")
        arguments[key] = parse_value(value)
    return arguments


def _suggestion(part: str) -> str:
    """Suggest ``budget=`` for an amount alone."""
    return f" Did you mean budget={part}?" if re.fullmatch(r"[\d.]+(%|[KMG]i?B)?", part) else ""


def parse_value(text: str) -> Any:
    """Parse a number, word, string or stage; other texts, such as amounts, stay texts."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == "'":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    call = re.fullmatch(r"([A-Za-z_]\w*)\((.*)\)", text, re.DOTALL)
    if call and call[1] == "auto":
        return text  # an amount
    if call:
        return make_stage(call[1], parse_arguments(call[2]))
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def make_stage(name: str, arguments: Mapping[str, Any]) -> Any:
    """Build the stage of that name.

    Raises:
        UnknownMethod: no stage has that name.
        InvalidSpec: the stage has no such parameter, or lacks one.
    """
    if name not in STAGES:
        raise UnknownMethod(f"no stage named {short_repr(name)}. {suggest(name, STAGES)}")
    fields = [f for f in dataclasses.fields(STAGES[name]) if f.init]
    known = [f.name for f in fields]
    for key in arguments:
        if key not in known:
            raise InvalidSpec(f"{name} has no parameter {short_repr(key)}. {suggest(key, known)}")
    for f in fields:
        optional = (
            f.default is not dataclasses.MISSING or f.default_factory is not dataclasses.MISSING
        )
        if f.name not in arguments and not optional:
            raise InvalidSpec(f"{name} needs {f.name!r}: {name}({f.name}=...).")
    return STAGES[name](**{**arguments, **_bare_stages(STAGES[name], arguments)})


def _bare_stages(cls: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Build stages from bare words, with their defaults: ``of=key_norm``."""
    hints = _hints(cls)
    words = {key: word for key, word in arguments.items() if isinstance(word, str)}
    return {key: make_stage(word, {}) for key, word in words.items() if is_protocol(hints[key])}


def _set_fields(value: Any) -> dict[str, Any]:
    return {
        f.name: getattr(value, f.name)
        for f in dataclasses.fields(value)
        if f.init and (f.default is dataclasses.MISSING or getattr(value, f.name) != f.default)
    }


def split(text: str, separator: str) -> list[str]:
    """Split at the separators outside parentheses and quotes.

    Raises:
        InvalidSpec: a parenthesis or quote is not closed, or the text is too long or nested too
            deep.
    """
    if len(text) > LONGEST:
        raise InvalidSpec(f"a spec of {len(text)} letters: {text[:40]!r}... Use at most {LONGEST}.")
    parts, depth, quoted, current, escaped = [], 0, False, "", False
    for char in text:
        if char == "'" and not escaped:
            quoted = not quoted
        depth += 0 if quoted else (char == "(") - (char == ")")
        if not 0 <= depth <= DEEPEST:
            what = "a parenthesis that nothing opened" if depth < 0 else "too many parentheses"
            raise InvalidSpec(f"{short_repr(text)} has {what}.")
        escaped = char == "\\" and not escaped
        if char == separator and depth == 0 and not quoted:
            parts.append(current)
            current = ""
        else:
            current += char
    if depth or quoted:
        raise InvalidSpec(
            f"{short_repr(text)} has an unclosed {'quote' if quoted else 'parenthesis'}."
        )
    return [*parts, current]
