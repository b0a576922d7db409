"""The comparison as a person reads it: a table of numbers, then the answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from foveate.cli import console
from foveate.cli.measure import Row

_HEADERS = ("Budget", "Tokens\nkept", "KV\nMiB", "Prefill\ns", "Compress\ns", "Decode\nms/token",
            "Departs at\ntoken")  # fmt: skip


def rendered(rows: Sequence[Row]) -> Group:
    """A table of numbers, and under it each method's answer."""
    numbers = console.table("Method")
    numbers.columns[0].overflow = "fold"
    for header in _HEADERS:
        numbers.add_column(header, justify="right", no_wrap=True)
    answers = Table.grid(padding=(0, 2))
    answers.add_column(max_width=24, overflow="fold")
    answers.add_column(overflow="fold")
    for row in rows:
        numbers.add_row(Text(broken(row.method)), *_numbers(row))
        answers.add_row(
            Text(f"{row.method} {row.budget or ''}".strip(), "bold"),
            Text(_compact(row.answer) or "(nothing)"),
        )
    return Group(numbers, "", answers)


def broken(spec: str, width: int = 21) -> str:
    """The spec on several lines, broken after a plus sign, colon or comma."""
    lines = [""]
    for piece in re.split(r"(?<=[+:,])", spec):
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _compact(answer: str) -> str:
    """The answer without blank lines."""
    return "\n".join(line for line in answer.splitlines() if line.strip())


def _numbers(row: Row) -> tuple[str, ...]:
    decode, place = row.decode_ms_per_token, row.first_divergence
    return (
        row.budget or "-",
        f"{row.kept_tokens:,.0f}",
        f"{row.kv_bytes / 2**20:,.2f}",
        f"{row.prefill_s:.2f}",
        f"{row.compress_s:.2f}",
        "-" if decode is None else f"{decode:.1f}",
        "never" if place is None else str(place),
    )
