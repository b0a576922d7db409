"""Tables of ``foveate bench``, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from foveate.cli import tables
from foveate_lab.bench import BenchRow

_NAMES = (
    tables.spec("Method", "method", 18),
    tables.column("Budget", "budget", none="-", no_wrap=True),
)
_KV = tables.mib("KV\nMiB", "kv_bytes", ",.1f")
_PREFILL = tables.number("Prefill\nratio", "prefill_ratio", ".2f")
_PEAK = tables.mib("Peak\nMiB", "peak_bytes", ",.1f", none="?")
_DECODING = (
    tables.number("Decode\nms", "decode_ms_per_token", ".1f"),
    tables.number("Decode\nratio", "decode_ratio", ".2f"),
)
_COSTS = (
    *_NAMES,
    tables.number("Tokens\nkept", "kept_tokens", ",.0f"),
    _KV,
    _PREFILL,
    tables.number("Stages\ns", "compress_s", ".3f"),
    _PEAK,
    *_DECODING,
)
_BATCHES = (
    *_NAMES,
    tables.number("Rows in\na batch", "batch", ",", none="none fits"),
    tables.number("Tokens/s\nof all", "tokens_per_s", ",.0f", none=""),
)
_PEERS = (
    *_NAMES,
    _KV,
    _PREFILL,
    _PEAK,
    *_DECODING,
    tables.column("Press", "press", overflow="fold"),
)


def of(rows: Sequence[BenchRow]) -> list[RenderableType]:
    """Return a table of costs, and one of batches if they were measured."""
    costs = tables.table(rows, *_COSTS, padding=tables.CLOSE)
    if all(row.batch is None for row in rows):
        return [costs]
    return [costs, "", tables.table(rows, *_BATCHES, padding=tables.CLOSE)]


def peers(rows: Sequence[dict[str, Any]]) -> RenderableType:
    """Return a table of costs of another library's presses."""
    return tables.table(rows, *_PEERS, padding=tables.CLOSE)
