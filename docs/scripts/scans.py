"""Tables of scanned receipts, from benchmarks/results/sroie.json and sroie.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SHOWN = ("full", "recommended*", "kvzip", "snapkv", "lookm")
"""Policies of the short table, by their short names."""
AT = "10%"


def table(protocol: str) -> str:
    """Return the tables of a protocol, as the benchmark wrote them."""
    page = (RESULTS / "sroie.md").read_text(encoding="utf-8")
    return page.partition(f"## {protocol.capitalize()}\n")[2].partition("\n## ")[0].strip()


def short_table() -> str:
    """Return right and same answers of some policies at 10 %, compressed before the question."""
    counts = _counts("query-agnostic")
    asked = counts["questions"]
    lines = [f"| | kept | same answer, of {asked} | right, of {asked} |", "|---|---|---|---|"]
    for name in SHOWN:
        spec, found = _policy(counts["policies"], name)
        amount = "100%" if name == "full" else AT
        shown = "full cache" if name == "full" else f"`{spec}`"
        lines.append(f"| {shown} | {amount} | {found['same']} | {found['right']:.0f} |")
    return "\n".join(lines)


def _counts(protocol: str) -> dict[str, Any]:
    data = json.loads((RESULTS / "sroie.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = data["counts"][protocol]
    return found


def _policy(policies: dict[str, Any], name: str) -> tuple[str, dict[str, Any]]:
    """Return a policy's spec without its budget, and its counts at 10 %; a star is a profile."""
    for spec, found in policies.items():
        method, _, budget = spec.partition(" ")
        plain = method.partition(":")[0] + "*" * ("profile=" in method)
        if plain == name and budget == ("" if name == "full" else AT):
            return method, found
    raise KeyError(name)
