"""Tables on a terminal: each column has a title, the field that it shows of a row, and a form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

CLOSE = (0, 1, 0, 0)  # blanks around a cell: as few as keep columns apart
Field = str | int | Callable[[Any], Any]
"""An attribute or a key of a row, an index, or a function of it."""


class Column(NamedTuple):
    """A column: ``form`` formats its values, and ``none`` stands for one that is missing."""

    title: str
    field: Field
    options: Mapping[str, Any] = {}
    form: str = ""
    none: str = "-"

    def cell(self, row: Any) -> Text:
        """Return what the column shows of a row."""
        value = _value(row, self.field)
        if isinstance(value, Text):
            return value
        return Text(self.none if value is None or value == "" else format(value, self.form))


def column(title: str, field: Field, none: str = "", **options: Any) -> Column:
    """A column of text, with options of rich's columns."""
    return Column(title, field, options, none=none)


def number(title: str, field: Field, form: str = "", none: str = "-") -> Column:
    """A column of numbers, on the right and on one line."""
    return Column(title, field, {"justify": "right", "no_wrap": True}, form, none)


def mib(title: str, field: Field, form: str, none: str = "-") -> Column:
    """A column of bytes, shown in MiB."""

    def size(row: Any) -> float | None:
        count = _value(row, field)
        return None if count is None else count / 2**20

    return number(title, size, form, none)


def spec(title: str, field: Field, width: int = 21) -> Column:
    """A column of policies, each on as many lines as it needs."""
    return column(title, lambda row: broken(short(_value(row, field)), width), overflow="fold")


def table(rows: Iterable[Any], *columns: Column | str, **options: Any) -> Table:
    """A table with a line under its header and none elsewhere.

    Args:
        rows: objects, mappings or tuples.
        columns: a title alone shows the rows' item of the same number.
        options: of rich's tables.
    """
    listed = [column(one, i) if isinstance(one, str) else one for i, one in enumerate(columns)]
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, **options)
    for one in listed:
        made.add_column(one.title, **one.options)
    for row in rows:
        made.add_row(*(one.cell(row) for one in listed))
    return made


def short(spec: str) -> str:
    """Name a spec's files without their folders, as it can be given to ``policies``."""
    return re.sub(r"'[^']*/([^'/]*)'|[^=,(']*/", lambda match: match[1] or "", spec)


def broken(text: str, width: int = 21) -> str:
    """Break a spec into lines, after a plus sign, colon or comma, and before a file's ending."""
    lines = [""]
    for piece in re.split(r"(?<=[+:,])|(?=\.[a-z])", text):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _value(row: Any, field: Field) -> Any:
    if callable(field):
        return field(row)
    by_key = isinstance(field, int) or isinstance(row, Mapping)
    return row[field] if by_key else getattr(row, str(field))
