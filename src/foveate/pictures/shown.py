"""Text from data, made so that all of it can be seen and none of it changes the text around it; and
pages from templates, whose values are all escaped and shown so.
"""

from __future__ import annotations

import re
import unicodedata
from importlib.resources import files
from typing import Any

from foveate.errors import MissingPackage

JOINERS = "\u200c\u200d"  # hold emoji and letters together
MOST_MARKS = 3  # on one letter; more would cover the lines around it
_CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_MARKS = {"Mn", "Me"}


def shown(text: str, keep: str = "") -> str:
    """The text with a code such as "[U+202E]" for every character that is not seen itself: control
    characters, what turns the direction of text, what has no width, halves of surrogate pairs.

    Marks that stand on no letter get a dotted circle, and piles of them are cut, with their number.

    Args:
        text: of any kind.
        keep: characters that stay, such as line breaks where they are shown as such.
    """
    lines: list[str] = []
    marks = 0
    for place, letter in enumerate(text):
        kind = unicodedata.category(letter)
        marks = marks + 1 if kind in _MARKS else _closed(lines, marks)
        if marks > MOST_MARKS:
            continue
        if marks and place == 0:
            lines.append("\u25cc")
        hidden = kind in _CONTROLS and letter not in keep and not _joins(text, place)
        lines.append(f"[U+{ord(letter):04X}]" if hidden else letter)
    _closed(lines, marks)
    return "".join(lines)


def short(text: str, most: int) -> str:
    """The text as ``shown``, without its middle where it is wider than so many letters; letters as
    wide as Chinese ones count twice.
    """
    text = shown(text)
    if width(text) <= most:
        return text
    end = _begin(text[::-1], max(most - 1, 0) // 2)[::-1]
    return f"{_begin(text, most - 1 - width(end))}\u2026{end}"


def width(text: str) -> int:
    """In letters."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def without_folders(spec: str) -> str:
    """A policy whose files are named without their folders."""
    return re.sub(r"[^=,(]*/", "", spec)


def _closed(lines: list[str], marks: int) -> int:
    """Says how many marks were cut, and begins to count anew."""
    if marks > MOST_MARKS:
        lines.append(f"[+{marks - MOST_MARKS} marks]")
    return 0


def _joins(text: str, place: int) -> bool:
    around = text[max(place - 1, 0) : place] + text[place + 1 : place + 2]
    return text[place] in JOINERS and len(around) == 2 and " " not in around


def _begin(text: str, most: int) -> str:
    """As much of its beginning as is that wide."""
    wide = 0
    for place, letter in enumerate(text):
        wide += width(letter)
        if wide > most:
            return text[:place]
    return text


def rendered(what: str, template: str, **values: Any) -> str:
    """Fill in a template, such as "foveate.pictures/lens.html.j2".

    Raises:
        MissingPackage: jinja2 is not installed; ``what`` needs it.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingPackage(what, "jinja2", "report") from error
    environment = Environment(autoescape=True, finalize=_shown)
    return environment.from_string(text_of(template)).render(**values)


def text_of(path: str) -> str:
    """Return a file of a package's templates, such as "foveate.pictures/lens.css"."""
    package, _, name = path.partition("/")
    return files(package).joinpath("templates", name).read_text("utf-8")


def _shown(value: Any) -> Any:
    """Not of what is HTML already."""
    return shown(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
