"""Parser of a method's docstring: summary, text, parameters, and origin of its defaults.

The sections are Google's: ``Args:`` with an entry for each parameter whose meaning is specific to
this method, and ``Defaults:``, the source of the default values.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import NamedTuple

_SECTION = re.compile(r"^(Args|Defaults):\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+): (.*(?:\n {4}.*)*)", re.MULTILINE)


class Docstring(NamedTuple):
    """Parts of a docstring; ``arguments`` are sentences by parameter, ``text`` has no sections."""

    summary: str
    text: str
    arguments: Mapping[str, str]
    defaults: str


def read(docstring: str | None) -> Docstring:
    """Split a docstring into its parts; missing ones are empty."""
    cleaned = f"{inspect.cleandoc(docstring or '')}\n"
    sections = {name: inspect.cleandoc(body) for name, body in _SECTION.findall(cleaned)}
    text = _SECTION.sub("", cleaned).strip()
    entries = _ARGUMENT.findall(sections.get("Args", ""))
    return Docstring(
        summary=text.split("\n")[0],
        text=text,
        arguments={name: " ".join(sentence.split()) for name, sentence in entries},
        defaults=" ".join(sections.get("Defaults", "").split()),
    )
