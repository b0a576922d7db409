"""Right answers under pruning, eviction and both, at about the same share of the cache.

    python -m benchmarks.quality.pruned_answers [--limit 25] [--protocols ...] [--tasks ...]

At a share S, pruning alone computes S of the visual tokens and evicts nothing. Eviction alone
computes all tokens and keeps S of the pairs. Both together prune to the square root of S, then
evict to S. Every policy answers the same questions with the demo model, query-aware and
query-agnostic. Answers are stored one by one under benchmarks/runs/pruned, so that a later run
continues. With other weights, or other code of the same version, give another --runs. Writes
benchmarks/results/pruned_answers.md and .json.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any, get_args

import foveate_lab.eval.tasks  # noqa: F401  which registers the tasks
from benchmarks.output import demo, write
from benchmarks.quality.asking import ask_missing
from benchmarks.quality.profiles_made import PROFILES
from benchmarks.quality.same_questions import results_of
from foveate.loading.model import load
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.results import read
from foveate_lab.eval.task_registry import TASKS

RUNS = Path(__file__).parents[1] / "runs" / "pruned"
SHARES = (0.5, 0.25, 0.125)
PRUNING = {
    "random.prune": "random.prune(keep={keep})",
    "divprune.prune": "divprune.prune(keep={keep})",
    "visionzip.prune": "visionzip.prune(keep={keep})",
    "fastv.prune": "fastv.prune(layer=2,keep={keep})",
}
EVICTION = {
    "snapkv": "snapkv:budget={budget},window=0.25",
    "recommended": "recommended:budget={budget},profile=" + f"{PROFILES}/recommended.safetensors",
}
Kind = tuple[str, str]
"""Kind of a row ("pruning", "eviction" or "both"), and its method."""


def percent(share: float) -> str:
    """Format a share as budgets are written."""
    return f"{100 * share:.4g}%"


def specs_at(share: float) -> dict[Kind, str]:
    """Return the specs at a share."""
    left, root = percent(share), percent(math.sqrt(share))
    found: dict[Kind, str] = {}
    for name, prune in PRUNING.items():
        found["pruning", name] = f"{prune.format(keep=left)}+full"
    for name, evict in EVICTION.items():
        found["eviction", name] = evict.format(budget=left)
    for first in ("divprune.prune", "fastv.prune"):
        for name, evict in EVICTION.items():
            both = f"{PRUNING[first].format(keep=root)}+{evict.format(budget=left)}"
            found["both", f"{first}+{name}"] = both
    return found


def answer_missing(runs: Path, protocol: Protocol, tasks: Sequence[str], limit: int) -> None:
    """Answer what is missing of the first questions of each task."""
    specs = [spec for share in SHARES for spec in specs_at(share).values()]
    with ExitStack() as stack:
        found = {
            task: stack.enter_context(results_of(runs / protocol / task, task, protocol))
            for task in tasks
        }
        loaded = load("demo")
        for task, results in found.items():
            for index, sample in enumerate(TASKS[task].samples(limit, 0)):
                ask_missing(results, loaded, TASKS[task], sample, specs, protocol)
                print(f"{protocol}, {task}: {index + 1} of {limit}", flush=True)


def standing(of_spec: Sequence[Mapping[str, Any]], full: Mapping[Any, Any]) -> dict[str, float]:
    """Return one spec's right answers, and its shares of the full cache's bytes and time."""
    rows = [row for row in of_spec if "right" in row]
    if not rows:
        return {}
    return {
        "questions": len(rows),
        "right": mean(row["right"] for row in rows),
        "bytes": mean(row["kv_bytes"] / row["kv_bytes_full"] for row in rows),
        "prefill": median(
            row["prefill_s"] / full[row["task"], row["sample"]]["prefill_s"] for row in rows
        ),
    }


def measured(runs: Path, protocol: Protocol, tasks: Sequence[str]) -> dict[str, Any]:
    """Return one protocol's table, by share, kind and method."""
    by_spec: dict[str, list[Mapping[str, Any]]] = {}
    for task in tasks:
        for row in read(runs / protocol / task).rows:
            by_spec.setdefault(row["spec"], []).append(row)
    full = {(row["task"], row["sample"]): row for row in by_spec[FULL]}
    found: dict[str, Any] = {"full": standing(by_spec[FULL], full)}
    for share in SHARES:
        for (kind, name), spec in specs_at(share).items():
            rows_of = by_spec.get(spec, [])
            found.setdefault(kind, {}).setdefault(name, {})[percent(share)] = standing(
                rows_of, full
            )
    return found


def page(found: Mapping[str, Any], tasks: Sequence[str]) -> str:
    """Return the page."""
    lines = ["# Pruning, eviction, and both: what is left of the answers", ""]
    lines += [
        f"The {demo()}; tasks: {', '.join(tasks)}. Right answers, and in parentheses the prefill "
        "as a share of the full cache's (seconds of the processor, medians) and the bytes held.",
        "",
    ]
    for protocol, table in found.items():
        full = table["full"]
        shares = " | ".join(percent(share) for share in SHARES)
        lines += [f"## {protocol}", ""]
        lines += [f"{full['questions']} questions; the full cache: {full['right']:.0%} right.", ""]
        lines += [f"| | method | {shares} |", f"|---|---|{'---|' * len(SHARES)}"]
        for kind in ("pruning", "eviction", "both"):
            for name, cells in table[kind].items():
                row = " | ".join(_cell(cells[percent(share)]) for share in SHARES)
                lines.append(f"| {kind} | `{name}` | {row} |")
        lines.append("")
    return "\n".join(lines)


def _cell(cell: Mapping[str, float]) -> str:
    if not cell:
        return "refused"
    return f"{cell['right']:.0%} ({cell['prefill']:.2f}, {cell['bytes']:.0%})"


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=25, help="questions of each task")
    parser.add_argument("--tasks", nargs="+", default=["three_documents", "chart"])
    parser.add_argument(
        "--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol)
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the answers")
    args = parser.parse_args()
    found = {}
    for protocol in args.protocols:
        answer_missing(args.runs, protocol, args.tasks, args.limit)
        found[protocol] = measured(args.runs, protocol, args.tasks)
    write("pruned_answers", page(found, args.tasks), {"limit": args.limit, **found})


if __name__ == "__main__":
    main()
