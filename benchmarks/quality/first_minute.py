"""Share of answers that stay right under the policies that `foveate run` shows.

    python -m benchmarks.quality.first_minute [--limit 100] [--runs DIR]

Runs `foveate eval` on questions about three documents each, under the policies that `foveate run`
shows on the demo model, continuing an earlier run. Writes demo_model/foveate_demo/figures.json,
which is part of the package: `foveate run` and the README read it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from foveate.cli.policies import ON_THE_DEMO, policies
from foveate.cli.tables import short
from foveate.prompts.sample import Sample
from foveate_demo import FIGURES
from foveate_lab.cli.eval import evaluate
from foveate_lab.defaults import Protocol
from foveate_lab.eval.metrics import exact
from foveate_lab.eval.results import CONFIGURATION, read

RUNS = Path(__file__).parents[1] / "runs" / "first_minute"
TASK, SEED = "three_documents", 0
PROTOCOL: Protocol = "query-aware"
Rows = Sequence[Mapping[str, Any]]


def counted(spec: str, rows: Rows) -> dict[str, Any]:
    """Summarize all questions under one policy; bytes are means over the questions."""
    right = [exact(row["prediction"], Sample("", "", tuple(row["answers"]))) for row in rows]
    return {
        "spec": short(spec),
        "same": sum(row["first_divergence"] is None for row in rows),
        "right": int(sum(right)),
        "kv_bytes": round(mean(row["kv_bytes"] for row in rows)),
    }


def main() -> None:
    """Answer the questions, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=100, help="questions")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the answers")
    a = parser.parse_args()
    specs = [policy.spec for policy in policies(ON_THE_DEMO, [])]
    evaluate(
        out=a.runs,
        tasks=TASK,
        methods=",".join(specs[1:]),
        budgets="",
        model="demo",
        protocol=PROTOCOL,
        limit=a.limit,
        seed=SEED,
        timed=0,
        resume=(a.runs / CONFIGURATION).exists(),
    )
    stored = read(a.runs)
    rows = stored.rows
    found = [counted(spec, [row for row in rows if row["spec"] == spec]) for spec in specs]
    figures = {
        "task": TASK,
        "protocol": PROTOCOL,
        "seed": SEED,
        "questions": a.limit,
        "versions": stored.configuration["versions"],
        "rows": found,
    }
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
