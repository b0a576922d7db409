"""Tables on a terminal. A column has a title, a field of the rows, and a format."""

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
    """Column of a table: ``form`` is the format of values, ``none`` the text without a value."""

    title: str
    field: Field
    options: Mapping[str, Any] = {}
    form: str = ""
    none: str = "-"

    def cell(self, row: Any) -> Text:
        """Return the column's cell in a row."""
        value = _value(row, self.field)
        if isinstance(value, Text):
            return value
        return Text(self.none if value is None or value == "" else format(value, self.form))


def column(title: str, field: Field, none: str = "", **options: Any) -> Column:
    """Return a column of text; ``options`` are those of rich's columns."""
    return Column(title, field, options, none=none)


def number(title: str, field: Field, form: str = "", none: str = "-") -> Column:
    """Return a column of numbers, right-aligned and not wrapped."""
    return Column(title, field, {"justify": "right", "no_wrap": True}, form, none)


def mib(title: str, field: Field, form: str, none: str = "-") -> Column:
    """Return a column that shows bytes in MiB."""

    def size(row: Any) -> float | None:
        count = _value(row, field)
        return None if count is None else count / 2**20

    return number(title, size, form, none)


def spec(title: str, field: Field, width: int = 21) -> Column:
    """Return a column of specs, wrapped at ``width``."""
    return column(title, lambda row: broken(short(_value(row, field)), width), overflow="fold")


def table(rows: Iterable[Any], *columns: Column | str, **options: Any) -> Table:
    """Build a table whose only line is under its header.

    Args:
        rows: objects, mappings or tuples.
        columns: a title alone shows the item of each row at the column's index.
        options: options of rich's tables.
    """
    listed = [column(item, i) if isinstance(item, str) else item for i, item in enumerate(columns)]
    built = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, **options)
    for item in listed:
        built.add_column(item.title, **item.options)
    for row in rows:
        built.add_row(*(item.cell(row) for item in listed))
    return built


def short(spec: str) -> str:
    """Shorten the paths in a spec to file names, in a form that ``policies`` accepts."""
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
