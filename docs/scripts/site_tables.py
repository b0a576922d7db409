"""MkDocs hook that labels cells of wide tables with their columns, to show rows as cards on phones.

`site.css` lays them out. Tables with very many columns, such as the ticks of `stages.md`,
scroll instead.
"""

from __future__ import annotations

import re
from html import escape
from itertools import chain
from typing import Any

COLUMNS = range(6, 11)
TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
CELL = re.compile(r"<td(?=[ >])")
TAG = re.compile(r"<[^>]+>")


def on_page_content(html: str, **_: Any) -> str:
    """Label the cells of wide tables."""
    return TABLE.sub(lambda found: labelled(found[0]), html)


def labelled(table: str) -> str:
    """Return the table; if it is wide, with ``data-wide``, and ``data-label`` at every cell."""
    names = [TAG.sub("", name).strip() for name in HEAD.findall(table)]
    if len(names) not in COLUMNS:
        return table

    def row(found: re.Match[str]) -> str:
        labels = chain(names, iter(lambda: "", None))  # surplus cells get an empty label
        return CELL.sub(lambda _: f'<td data-label="{escape(next(labels))}"', found[0])

    return ROW.sub(row, table).replace("<table>", "<table data-wide>", 1)
