r"""Answers of `recommended` with one count per layer beside one per KV head, on the same questions.

    python -m benchmarks.quality.heads [--limit 60] [--only-write]

Both take their counts from the profile, as serving needs. Asks the demo model, and goes on where it
was interrupted; then writes benchmarks/results/heads.md and .json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args

from benchmarks.output import demo, write
from benchmarks.output import table as lines_of
from benchmarks.quality.recipe import (
    MEAN,
    PROFILES,
    RUNS,
    Run,
    answer_missing,
    answered,
    parsed,
    shares,
    table,
)
from foveate_lab.defaults import Protocol
from foveate_lab.eval.summary import Estimate, mean_difference

SPEC = f"recommended:profile={PROFILES}/recommended.safetensors,heads="
BY_HEAD, BY_LAYER = f"{SPEC}by_profile", f"{SPEC}by_layer"
BUDGETS = ("20%", "10%", "5%")
FOLDER = RUNS.parent / "heads"
ENDS = ("mean", "low", "high")


def difference(rows: Sequence[Mapping[str, Any]], budget: str) -> Estimate:
    """Return how many more of all answers are right by layer than by head, as a share."""
    right = {
        kind: {
            (row["task"], row["sample"]): float(row["score"])
            for row in rows
            if f"heads={kind}" in row["spec"] and f"budget={budget}" in row["spec"]
        }
        for kind in ("by_layer", "by_profile")
    }
    return mean_difference(
        score - right["by_profile"][key] for key, score in right["by_layer"].items()
    )


def page(protocol: Protocol) -> tuple[list[str], dict[str, Any]]:
    """Return the tables of one protocol, and their figures."""
    rows = [row for task in MEAN for row in answered(FOLDER / protocol / task)]
    lines = [f"## {protocol.capitalize()} ({demo()})", ""]
    lines += table(f"Mean of {', '.join(MEAN)}", shares(rows, MEAN))
    for task in MEAN:
        lines += table(task, shares([row for row in rows if row["task"] == task], [task]))
    found = {budget: difference(rows, budget) for budget in BUDGETS}
    cells = [[b, *(f"{getattr(x, end):+.3f}" for end in ENDS)] for b, x in found.items()]
    lines += [
        "#### By layer minus by head: share of all questions answered right",
        "",
        *lines_of(["budget", "difference", "from", "to"], cells),
        "",
    ]
    return lines, {"questions": len(rows), "differences": {b: asdict(x) for b, x in found.items()}}


def main() -> None:
    """Ask what is missing, then write the page."""
    a = parsed(__doc__)
    text = ["# Budgets by layer beside budgets by KV head", ""]
    text += [
        "`recommended` with its profile, which says beforehand what is kept: one count per KV head "
        "(`heads=by_profile`), or one per layer (`heads=by_layer`), the mean of its heads. Right "
        "answers of the demo model, letter by letter, as shares of the full cache's, with 95 % "
        "intervals (bootstrap over questions, paired).",
        "",
    ]
    data = {}
    for protocol in get_args(Protocol):
        for task in MEAN if not a.only_write else ():
            run = Run("profile", task, (BY_HEAD, BY_LAYER), a.limit, ",".join(BUDGETS))
            answer_missing(run, protocol, FOLDER / protocol / task)
        lines, data[protocol] = page(protocol)
        text += lines
    write("heads", "\n".join(text), data)


if __name__ == "__main__":
    main()
