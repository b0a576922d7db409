"""Text around tables of results: the command, seed, versions and hash of the data behind them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
SHOWN = ("foveate", "demo", "torch", "transformers")
"""Versions that a line names, where the data record them."""


class Origin(NamedTuple):
    """Origin of a table: command, data file from the repository's root, and the versions in it.

    ``seed`` is that of the questions; None where nothing is drawn. ``limit`` returns the number of
    questions that the command names as {limit}.
    """

    command: str
    data: str
    versions: Callable[[Any], Mapping[str, str]]
    seed: int | None = None
    limit: Callable[[Any], int] = lambda found: 0


def _of_leaderboard(found: Any) -> Mapping[str, str]:
    versions: Mapping[str, str] = next(iter(found["leaderboard"].values()))["versions"]
    return versions


def _of_claims(found: Any) -> Mapping[str, str]:
    first = next(iter(found["claims"].values()))
    return {**first["versions"], "demo": first["demo"]}


_BOARD = Origin(
    "python -m benchmarks.quality.board --limit {limit}",
    "benchmarks/results/board.json",
    lambda found: found["made"],
    0,
    lambda found: len(found["asked"]["query-aware"]["chart"]["full"]["right"]),
)
_LEADERBOARD = Origin(
    "python -m benchmarks.quality.quality --limit {limit}",
    "benchmarks/results/quality.json",
    _of_leaderboard,
    0,
    lambda found: max(next(iter(found["leaderboard"].values()))["questions"].values()),
)
_SCANS = Origin(
    "python -m benchmarks.quality.receipts --data ICDAR-2019-SROIE",
    "benchmarks/results/sroie.json",
    lambda found: found["model"]["versions"],
)
ORIGINS = {
    "scans": _SCANS,
    "scans_aware": _SCANS,
    "scans_agnostic": _SCANS,
    "kept": Origin(
        "python -m benchmarks.quality.first_minute",
        "demo_model/foveate_demo/figures.json",
        lambda found: found["versions"],
        0,
    ),
    "speed": Origin(
        "python -m benchmarks.speed.cpu", "benchmarks/results/cpu.json", lambda found: found
    ),
    "peers": Origin(
        "python -m benchmarks.speed.peers", "benchmarks/results/peers.json", lambda found: found
    ),
    "aware": _LEADERBOARD,
    "agnostic": _LEADERBOARD,
    "board_aware": _BOARD,
    "board_agnostic": _BOARD,
    "which": Origin(
        "python -m benchmarks.quality.quality --parts claims --claims-limit {limit}",
        "benchmarks/results/quality.json",
        _of_claims,
        0,
        lambda found: next(iter(found["claims"].values()))["limit"],
    ),
}
"""Origins of the tables of README and docs/quality.md, by the name of their markers."""


def filled(text: str) -> str:
    """Return a text in lines of at most 100 characters, as the pages have it."""
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def with_origin(name: str, table: Callable[[], str]) -> Callable[[], str]:
    """Return a function that makes a table and the line of its origin below."""
    return lambda: f"{table()}\n\n{line(ORIGINS[name])}"


def line(origin: Origin) -> str:
    """Return the line of an origin in small print."""
    content = (ROOT / origin.data).read_bytes()
    found = json.loads(content)
    versions, command = origin.versions(found), origin.command.format(limit=origin.limit(found))
    named = [_named(name, versions[name]) for name in SHOWN if name in versions]
    seed = [] if origin.seed is None else [f"seed {origin.seed}"]
    digest = hashlib.sha256(content).hexdigest()[:12]
    facts = ", ".join([f"<code>{command}</code>", *seed, *named])
    return f"<sub>{facts}; {origin.data}, SHA-256 {digest}</sub>"


def _named(name: str, version: str) -> str:
    return version if version.startswith(name) else f"{name} {version}"
