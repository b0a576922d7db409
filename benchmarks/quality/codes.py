r"""Answers from pairs in few bits: TurboQuant beside KIVI, with all pairs and with half of them.

    python -m benchmarks.quality.codes [--limit 60] [--only-write]

Asks the demo model, and goes on where it was interrupted; then writes benchmarks/results/codes.md
and .json, of the tasks that are complete: right answers, letter by letter, as shares of the full
cache's, with 95 % intervals (bootstrap over questions, paired), and the bytes stored after the
prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.output import demo, table, write
from benchmarks.quality.recipe import (
    MEAN,
    PROFILES,
    RUNS,
    Run,
    answer_missing,
    answered,
    cell_text,
    shares,
)
from foveate_lab.defaults import Protocol

PROTOCOL: Protocol = "query-aware"
KEEP = f"recommended(profile={PROFILES}/recommended.safetensors)"
# without a residual KIVI's pairs take 5 % more bytes than TurboQuant's of 4 bits, hence 47 %
KIVI = "kivi(bits=4,group=64,residual=0)"
METHODS = (
    "turboquant:bits=4",
    "turboquant:bits=3",
    "turboquant:bits=2",
    "turboquant:bits=4,sketch=true",
    "kivi:bits=4,group=64,residual=0",
    "kivi:bits=2,group=64,residual=0",
    f"{KEEP}:budget=50%",
    f"{KEEP}+turboquant(bits=4):budget=50%",
    f"{KEEP}+turboquant(bits=3):budget=50%",
    f"{KEEP}+{KIVI}:budget=47%",
)
FOLDER = RUNS.parent / "codes"


def bytes_share(rows: Sequence[Mapping[str, Any]], spec: str) -> float:
    """Return a policy's bytes over the full cache's, the mean of all questions."""
    own = [row for row in rows if row["spec"] == spec]
    return mean(float(row["kv_bytes"] / row["kv_bytes_full"]) for row in own)


def lines_of(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[str]:
    """Return a line per policy: its bytes, all tasks' share, and each task's."""
    of_tasks = [shares([row for row in rows if row["task"] == task], [task]) for task in tasks]
    cells = [
        [f"`{spec}`", f"{bytes_share(rows, spec):.3f}", cell_text(share)]
        + [cell_text(of_task[spec]) for of_task in of_tasks]
        for spec, share in shares(rows, tasks).items()
    ]
    return table(["policy", "bytes", "mean of the tasks", *tasks], cells)


def main() -> None:
    """Ask what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=60, help="questions of each task")
    parser.add_argument("--only-write", action="store_true", help="use the answers so far")
    a = parser.parse_args()
    for task in MEAN if not a.only_write else ():
        answer_missing(Run("codes", task, METHODS, a.limit, ""), PROTOCOL, FOLDER / task)
    of_tasks = {task: answered(FOLDER / task) for task in MEAN}
    tasks = [
        task for task, own in of_tasks.items() if len({row["sample"] for row in own}) == a.limit
    ]
    rows = [row for task in tasks for row in of_tasks[task]]
    text = [
        "# Answers from pairs in few bits",
        "",
        f"The {demo()} in float32, {PROTOCOL}, {a.limit} questions per task. Right answers, letter "
        "by letter, as shares of the full cache's, with 95 % intervals (bootstrap over questions, "
        "paired). Bytes are all that is stored after the prompt, codes, norms or scales and "
        "positions, over those of the full cache in float32.",
        "",
        *lines_of(rows, tasks),
    ]
    write("codes", "\n".join(text), rows)


if __name__ == "__main__":
    main()
