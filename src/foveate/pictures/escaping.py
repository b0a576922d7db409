"""Escaping of invisible characters in users' texts, and templates that apply it to all values."""

from __future__ import annotations

import re
import unicodedata
from importlib.resources import files
from typing import Any

from foveate.errors import MissingPackage

JOINERS = "\u200c\u200d"  # they join emoji and letters
MOST_MARKS = 3  # combining marks on one letter; more would cover the neighbouring lines
_CONTROLS = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_MARKS = {"Mn", "Me"}


def escape_hidden(text: str, keep: str = "") -> str:
    """Replace invisible characters by codes such as "[U+202E]".

    They are control characters, changes of the text direction, characters without width, and lone
    surrogates. A combining mark without a letter gets a dotted circle; of more than ``MOST_MARKS``
    marks on a letter, the rest is replaced by its number.

    Args:
        text: any text.
        keep: characters that are not replaced, e.g. line breaks.
    """
    lines: list[str] = []
    marks = 0
    for index, letter in enumerate(text):
        kind = unicodedata.category(letter)
        marks = marks + 1 if kind in _MARKS else _close_marks(lines, marks)
        if marks > MOST_MARKS:
            continue
        if marks and index == 0:
            lines.append("\u25cc")
        hidden = kind in _CONTROLS and letter not in keep and not _is_joiner(text, index)
        lines.append(f"[U+{ord(letter):04X}]" if hidden else letter)
    _close_marks(lines, marks)
    return "".join(lines)


def short(text: str, limit: int) -> str:
    """Escape a text, and cut its middle out if it is wider than ``limit`` (see :func:`width`)."""
    text = escape_hidden(text)
    if width(text) <= limit:
        return text
    end = _truncate(text[::-1], max(limit - 1, 0) // 2)[::-1]
    return f"{_truncate(text, limit - 1 - width(end))}\u2026{end}"


def width(text: str) -> int:
    """Return a text's width in letters; wide letters, such as Chinese ones, count twice."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def without_folders(spec: str, folders: int = 0) -> str:
    """Return a spec with paths shortened to file names and their last ``folders`` folders."""
    return re.sub(rf"[^=,(]*/((?:[^=,(/]*/){{{folders}}})", r"\1", spec)


def _close_marks(lines: list[str], marks: int) -> int:
    """Append the number of marks that were cut, if any; return 0, the new count."""
    if marks > MOST_MARKS:
        lines.append(f"[+{marks - MOST_MARKS} marks]")
    return 0


def _is_joiner(text: str, index: int) -> bool:
    around = text[max(index - 1, 0) : index] + text[index + 1 : index + 2]
    return text[index] in JOINERS and len(around) == 2 and " " not in around


def _truncate(text: str, limit: int) -> str:
    """Return the longest beginning of a text that is at most ``limit`` wide."""
    wide = 0
    for index, letter in enumerate(text):
        wide += width(letter)
        if wide > limit:
            return text[:index]
    return text


def rendered(purpose: str, template: str, **values: Any) -> str:
    """Fill in a template such as "foveate.pictures/lens.html.j2"; ``purpose`` is for errors.

    Raises:
        MissingPackage: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingPackage(purpose, "jinja2", "report") from error
    environment = Environment(autoescape=True, finalize=_escape_value)
    return environment.from_string(text_of(template)).render(**values)


def text_of(path: str) -> str:
    """Return a file of a package's templates, such as "foveate.pictures/lens.css"."""
    package, _, name = path.partition("/")
    return files(package).joinpath("templates", name).read_text("utf-8")


def _escape_value(value: Any) -> Any:
    """Escape a template's value, unless it is HTML already."""
    return (
        escape_hidden(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
    )
