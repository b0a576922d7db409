r"""Right answers under the recommended recipe, beside the methods it is compared with.

    python -m benchmarks.quality.recipe [--limit 50] [--long 50] \
        [--protocols query-agnostic query-aware]

Answers questions with the demo model, continuing an earlier run. Then writes
benchmarks/results/recipe.md and .json: exactly right answers as shares of the full cache's, with
95 % intervals (paired bootstrap over questions). The profiles were fitted to other pages: other
seeds, and no page of `naming` and `image_needle` at all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

import foveate_lab.eval.tasks  # noqa: F401  which registers the tasks
from benchmarks.output import RESULTS, demo, write
from benchmarks.quality.asking import ask_missing
from foveate.compression.labels import named
from foveate.hf.saving.identity import ModelIdentity
from foveate.loading.hardware import versions_of_results
from foveate.loading.model import Loaded, load
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.results import CONFIGURATION, Results, read
from foveate_lab.eval.task_registry import TASKS

RUNS = Path(__file__).parents[1] / "runs" / "recipe"
PROFILES = "benchmarks/profiles"
MEAN = ("document", "three_documents", "three_people", "chart")
UNSEEN = ("naming", "image_needle")
LONG = ("eight_people", "sixteen_people")
METHODS = (
    f"recommended:profile={PROFILES}/recommended.safetensors",
    f"keydiff(recent=0.25)+headkv.budget(profile={PROFILES}/headkv.json)",
)
FREE = (
    "recommended",
    "keydiff:recent=0.25",
    "mixkv(window=0.25)+adakv(by=score)",
    "mixkv:window=0.25",
    "prefixkv:when=after_prefill",
    "csp",
    "david",
    "lookm",
)
READ_TWICE = "kvzip"
BUDGETS = "20%,10%,5%,3%"
DRAWS = 2000
SEED = 3026  # 2026 was used while the defaults were chosen


class Run(NamedTuple):
    """Task with the methods, questions and budgets to answer it under."""

    kind: str
    task: str
    methods: Sequence[str]
    limit: int
    budgets: str = BUDGETS


def runs(a: argparse.Namespace) -> list[Run]:
    """Return the runs, most informative first."""
    all_runs = [
        *(Run("profile", task, a.methods, a.limit) for task in MEAN),
        *(Run("profile", task, a.methods, a.long, "20%,10%,5%") for task in LONG),
        *(Run("profile", task, a.methods, a.unseen) for task in UNSEEN),
        *(Run("free", task, FREE, a.limit, "20%,10%") for task in MEAN),
        *(Run("twice", task, (READ_TWICE,), a.again, "20%,10%,5%") for task in (*MEAN, *LONG)),
    ]
    return [run for run in all_runs if run.kind in a.kinds and run.limit]


def parsed(doc: str) -> argparse.Namespace:
    """Parse the options of a benchmark with one limit for all tasks; ``doc`` describes it."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--limit", type=int, default=60, help="questions of each task")
    parser.add_argument("--only-write", action="store_true", help="use the answers so far")
    return parser.parse_args()


@cache
def _loaded() -> Loaded:
    return load("demo")


def answer_missing(run: Run, protocol: Protocol, folder: Path, seed: int = SEED) -> None:
    """Answer what is missing of a run, one bit per answer (`asking.py`)."""
    versions = {"weights": ModelIdentity.of(_loaded().model).weights, **versions_of_results()}
    about = {"tasks": [run.task], "protocol": protocol, "seed": seed, "versions": versions}
    specs = contenders(run.methods, [b for b in run.budgets.split(",") if b])
    with Results(folder, {"model": "demo", **about}, resume=True) as results:
        for sample in TASKS[run.task].samples(run.limit, seed):
            arguments = (results, _loaded(), TASKS[run.task], sample, specs, protocol)
            ask_missing(*arguments, labels=dict(sample.labels))
    print(f"{protocol}, {run.task}: {run.limit} questions", flush=True)


def answered(folder: Path) -> list[Mapping[str, Any]]:
    """Return the rows so far, with a score of 1 for exactly right answers."""
    if not (folder / CONFIGURATION).exists():
        return []
    return [{**row, "score": row["right"]} for row in read(folder).rows if "error" not in row]


class Share(NamedTuple):
    """Right answers as a share of the full cache's, mean over tasks, with its interval."""

    mean: float
    low: float
    high: float
    questions: int


def shares(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> dict[str, Share]:
    """Return the share of every spec that was asked in all of the tasks."""
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        of_task = scores.setdefault(row["spec"], {}).setdefault(row["task"], {})
        of_task[row["sample"]] = float(row["score"])
    full = scores.pop(FULL)
    found = {}
    for spec, by_task in scores.items():
        if set(tasks) <= set(by_task):
            pairs = [
                np.array([[by_task[t][s], full[t][s]] for s in sorted(by_task[t])]) for t in tasks
            ]
            found[spec] = _share(pairs)
    return found


def _share(pairs: Sequence[np.ndarray]) -> Share:
    r = np.random.default_rng(0)
    drawn = np.zeros((DRAWS, 2))
    for of_task in pairs:
        indices = r.integers(0, len(of_task), (DRAWS, len(of_task)))
        drawn += of_task[indices].mean(1)
    # with few questions, the full cache may answer none of a draw
    defined = drawn[drawn[:, 1] > 0]
    low, high = np.percentile(defined[:, 0] / defined[:, 1], [2.5, 97.5])
    ours, theirs = sum(of_task.mean(0) for of_task in pairs)
    return Share(float(ours / theirs), float(low), float(high), sum(map(len, pairs)))


def table(title: str, found: Mapping[str, Share]) -> list[str]:
    """Return a table: a row per method, a column per budget."""
    cells: dict[str, dict[str, Share]] = {}
    for spec, share in found.items():
        method, budget = named(spec)
        cells.setdefault(method, {})[budget] = share
    budgets = list(dict.fromkeys(b for row in cells.values() for b in row))
    lines = [f"#### {title}", "", f"| method | questions | {' | '.join(budgets)} |"]
    lines.append(f"|---|---|{'---|' * len(budgets)}")
    for method, row in cells.items():
        texts = [cell_text(row[b]) if b in row else "" for b in budgets]
        questions = max(share.questions for share in row.values())
        lines.append(f"| `{method}` | {questions} | {' | '.join(texts)} |")
    return [*lines, ""]


def cell_text(x: Share) -> str:
    """Format a cell of a table."""
    return f"{x.mean:.2f} ({x.low:.2f} to {x.high:.2f})"


TITLES = {
    "profile": "With a profile",
    "free": "Without a profile",
    "twice": "Read twice, without a profile",
}


def tables(kind: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the mean over the tasks that are combined, and each task by itself."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    lines = [f"### {TITLES[kind]} ({demo()})", ""]
    if set(MEAN) <= set(tasks):
        lines += table(f"Mean of {', '.join(MEAN)}", shares(rows, MEAN))
    for task in tasks:
        lines += table(task, shares([row for row in rows if row["task"] == task], [task]))
    return lines


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="methods with a profile")
    parser.add_argument("--limit", type=int, default=50, help="questions of each short task")
    parser.add_argument("--long", type=int, default=50, help=f"questions of {', '.join(LONG)}")
    parser.add_argument("--unseen", type=int, default=50, help="questions of each unseen task")
    parser.add_argument("--again", type=int, default=25, help="questions for kvzip")
    parser.add_argument("--kinds", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--only-write", action="store_true", help="write the results so far")
    parser.add_argument(
        "--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol)
    )
    a = parser.parse_args()
    path = RESULTS / "recipe.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    for protocol in a.protocols:
        of_kinds: dict[str, list[Mapping[str, Any]]] = {}
        for run in runs(a):
            folder = RUNS / protocol / f"{run.kind}-{run.task}"
            if not a.only_write:
                answer_missing(run, protocol, folder)
            of_kinds.setdefault(run.kind, []).extend(answered(folder))
        new = {kind: tables(kind, rows) for kind, rows in of_kinds.items() if rows}
        data[protocol] = {**data.get(protocol, {}), **new}
    head = [
        "# The recommended recipe",
        "",
        "The demo model's right answers, letter by letter, as shares of the full cache's, with 95 "
        "% intervals (bootstrap over questions, paired). The profile of `recommended` was fitted "
        "to 48 other prompts, by damage and by the model's own answers; that of `headkv` to 25 "
        "with right answers. No question here was looked at while methods or their defaults were "
        "chosen.",
        "",
    ]
    for protocol, of_kind in data.items():
        head += [
            f"## {protocol.capitalize()}",
            "",
            *(x for lines in of_kind.values() for x in lines),
        ]
    write("recipe", "\n".join(head), data)


if __name__ == "__main__":
    main()
