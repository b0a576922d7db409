"""Tables of scanned receipts, from benchmarks/results/sroie.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from leaderboard import short
from provenance import ROOT, filled

BUDGETS = ("20%", "10%", "5%")
AT = "10%"
SHOWN = ("recommended*", "kvzip", "snapkv", "lookm")
"""Policies of the short table, by their short names."""
CHOICE = {
    "recommended*": "can calibrate | `recommended` with a profile",
    "kvzap*": "same, and need the fastest | `kvzap` with a profile",
    "kvzip": "can pay a second prefill instead | `kvzip`",
    "recommended": "want neither | `recommended` without a profile",
}


def lead() -> str:
    """Return how many answers about receipts are right, compressed before the question."""
    counts = _part("query-agnostic", 0)
    asked, found = counts["questions"], _by_name(counts)
    full = found["full"][""]
    others = [f"`{name}` {found[name][AT]['right']}" for name in SHOWN[1:]]
    text = (
        f"The second model that ships reads {counts['receipts']} scanned receipts (SROIE), which "
        f"it has never seen. They are compressed before {asked} questions about them. The full "
        f"cache has {full['right']} right answers. With {AT.replace('%', ' %')} of it "
        f"`recommended` with its profile (a star) has **{found[SHOWN[0]][AT]['right']}**, "
        f"{', '.join(others[:-1])} and {others[-1]}:"
    )
    head = f"| | kept | right, of {asked} | same as the full cache's, of {asked} |"
    rows = [("full cache", "100%", full)]
    rows += [(f"`{name}`", budget, found[name][budget]) for name in SHOWN for budget in BUDGETS[:2]]
    cells = [f"| {name} | {kept} | {x['right']} | {x['same']} |" for name, kept, x in rows]
    return "\n".join([filled(text), "", head, "|---|---|---|---|", *cells])


def table(protocol: str) -> str:
    """Return a table of right and same answers by method and budget, best first."""
    counts = _part(protocol, 0)
    found = _by_name(counts)
    full = found.pop("full")[""]
    heads = [f"{what}, {budget}" for what in ("right", "same") for budget in BUDGETS]
    lines = [
        f"{counts['receipts']} receipts, {counts['questions']} questions; the full cache has "
        f"{full['right']} right.",
        "",
        f"| method | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for name, of_budget in sorted(found.items(), key=lambda item: -item[1][AT]["right"]):
        cells = [str(of_budget[b][what]) for what in ("right", "same") for b in BUDGETS]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def choice() -> str:
    """Return shares of the full cache's right answers for the methods to choose from."""
    found = _by_name(_part("query-agnostic", -1))
    heads = " | ".join(budget.replace("%", " %") for budget in BUDGETS)
    lines = [f"| you | take | {heads} |", "|---|---|---|---|---|"]
    lines += [f"| {text} | {_shares(found, name)} |" for name, text in CHOICE.items()]
    return "\n".join(lines)


def _shares(found: Mapping[str, Any], name: str) -> str:
    full = found["full"][""]["right"]
    return " | ".join(f"{found[name][budget]['right'] / full:.2f}" for budget in BUDGETS)


@cache
def _part(protocol: str, number: int) -> dict[str, Any]:
    """Return the counts of a table: 0 for that of all methods, -1 for that of the best."""
    data = json.loads((ROOT / "benchmarks" / "results" / "sroie.json").read_text(encoding="utf-8"))
    parts: Sequence[dict[str, Any]] = data["counts"][protocol]
    return parts[number]


def _by_name(counts: Mapping[str, Any]) -> dict[str, dict[str, dict[str, int]]]:
    """Return counts by short name and budget; a star stands for a profile."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for spec, of_spec in counts["policies"].items():
        method, _, budget = spec.partition(" ")
        found.setdefault(short(method), {})[budget] = of_spec
    return found
