"""Leaderboard of all methods on the same questions, and the claims of the papers.

    python -m benchmarks.quality.quality [--limit 40] [--protocols ...]      the leaderboard
    python -m benchmarks.quality.quality --parts claims [--claims-limit 100]  the claims, for hours

Continues an earlier run: a higher limit answers only what is missing. `--again SPEC`, the beginning
of specs, answers again what has changed since (a profile, a method's code). Writes
benchmarks/results/quality.json, from which `python docs/scripts/tables.py` makes docs/quality.md,
and for the claims benchmarks/results/quality.md. Other results stay as they were.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from benchmarks.output import RESULTS, write
from benchmarks.quality import claims, same_questions
from benchmarks.quality.profiles_made import make_missing
from benchmarks.quality.standings import standings
from foveate_lab.defaults import Protocol

RUNS = Path(__file__).parents[1] / "runs"
BUDGETS = "50%,33%,20%,10%,5%"
TASKS = "three_documents,chart"


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["leaderboard"])
    parser.add_argument("--limit", type=int, default=40, help="questions of each task")
    parser.add_argument(
        "--claims-limit", type=int, default=100, help="questions of each task, for claims"
    )
    parser.add_argument(
        "--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol)
    )
    parser.add_argument(
        "--again", nargs="+", default=[], metavar="SPEC", help="specs to answer again"
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the answers")
    parser.add_argument("--only-write", action="store_true", help="write the results so far")
    a = parser.parse_args()
    data = json.loads((RESULTS / "quality.json").read_text())
    for part in a.parts:
        PARTS[part](a, data.setdefault(part, {}))
    write("quality", claims.text(data["claims"]), data)


def _leaderboard(a: argparse.Namespace, data: dict[str, Any]) -> None:
    """Update the leaderboard of each protocol, on the questions that all methods answered."""
    make_missing()
    if a.again:
        same_questions.forget(a.runs / "leaderboard", a.again)
    for protocol in a.protocols:
        if not a.only_write:
            same_questions.answer_missing(
                a.runs / "leaderboard", protocol, a.limit, same_questions.METHODS
            )
        data[protocol] = standings(a.runs / "leaderboard" / protocol)


def _claims(a: argparse.Namespace, data: dict[str, Any]) -> None:
    for protocol in a.protocols:
        data[protocol] = claims.measured(
            a.runs / "quality", protocol, TASKS, BUDGETS, a.claims_limit
        )


PARTS = {"leaderboard": _leaderboard, "claims": _claims}


if __name__ == "__main__":
    main()
