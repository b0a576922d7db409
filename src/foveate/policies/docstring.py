"""What a method's docstring says: a summary, a text, what its parameters do, whence its defaults.

The sections are Google's: ``Args:`` with a line or more for each parameter that other methods do
not have in the same sense, and ``Defaults:``, where the values come from that nobody gave.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import NamedTuple

_SECTION = re.compile(r"^(Args|Defaults):\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+): (.*(?:\n {4}.*)*)", re.MULTILINE)


class Docstring(NamedTuple):
    """``arguments`` are sentences by parameter; ``text`` is all beside the two sections."""

    summary: str
    text: str
    arguments: Mapping[str, str]
    defaults: str


def read(docstring: str | None) -> Docstring:
    """The parts of a docstring; what it lacks is empty."""
    whole = f"{inspect.cleandoc(docstring or '')}\n"
    sections = {name: inspect.cleandoc(body) for name, body in _SECTION.findall(whole)}
    text = _SECTION.sub("", whole).strip()
    said = _ARGUMENT.findall(sections.get("Args", ""))
    return Docstring(
        summary=text.split("\n")[0],
        text=text,
        arguments={name: " ".join(sentence.split()) for name, sentence in said},
        defaults=" ".join(sections.get("Defaults", "").split()),
    )
