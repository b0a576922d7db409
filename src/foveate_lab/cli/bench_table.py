"""The tables of ``foveate bench``, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from foveate.cli import console
from foveate.cli.policies import short
from foveate.cli.run.rows import broken
from foveate_lab.bench import BenchRow

_CLOSE = (0, 1, 0, 0)  # blanks around a cell: as few as keep columns apart
_COSTS = (
    "Tokens\nkept",
    "KV\nMiB",
    "Prefill\nratio",
    "Stages\ns",
    "Peak\nMiB",
    "Decode\nms",
    "Decode\nratio",
)


def of(rows: Sequence[BenchRow]) -> list[RenderableType]:
    """What each policy costs; and batches, where they were measured."""
    costs = _table(*_COSTS)
    for row in rows:
        costs.add_row(
            *_names(row.method, row.budget),
            f"{row.kept_tokens:,.0f}",
            _mib(row.kv_bytes),
            f"{row.prefill_ratio:.2f}",
            f"{row.compress_s:.3f}",
            _mib(row.peak_bytes),
            f"{row.decode_ms_per_token:.1f}",
            f"{row.decode_ratio:.2f}",
        )
    if all(row.batch is None for row in rows):
        return [costs]
    batches = _table("Rows in\na batch", "Tokens/s\nof all")
    for row in rows:
        many, pace = row.batch, row.tokens_per_s
        shown = ("none fits", "") if many is None or pace is None else (f"{many:,}", f"{pace:,.0f}")
        batches.add_row(*_names(row.method, row.budget), *shown)
    return [costs, "", batches]


def peers(rows: Sequence[dict[str, Any]]) -> Any:
    """What another library's presses cost."""
    table = _table("KV\nMiB", "Prefill\nratio", "Peak\nMiB", "Decode\nms", "Decode\nratio")
    table.add_column("Press", overflow="fold")
    for row in rows:
        table.add_row(
            *_names(row["method"], row["budget"]),
            _mib(row["kv_bytes"]),
            f"{row['prefill_ratio']:.2f}",
            _mib(row["peak_bytes"]),
            f"{row['decode_ms_per_token']:.1f}",
            f"{row['decode_ratio']:.2f}",
            row["press"] or "",
        )
    return table


def _table(*headers: str) -> Any:
    table = console.table("Method", "Budget", padding=_CLOSE)
    table.columns[0].overflow, table.columns[1].no_wrap = "fold", True
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _names(method: str, budget: str | None) -> tuple[Text, str]:
    return Text(broken(short(method), 18)), budget or "-"


def _mib(count: int | None) -> str:
    return "?" if count is None else f"{count / 2**20:,.1f}"
