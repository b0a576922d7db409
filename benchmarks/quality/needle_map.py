"""A page among many with the same fields: right answers by number of pages and depth.

    python -m benchmarks.quality.needle_map [--each 2] [--budget 10%]

The question is not known when the cache is compressed. Answers of the demo model are stored one by
one under benchmarks/runs/needle_map, so that a later run continues. Writes
benchmarks/results/needle_map.md and .json, and docs/needle_map.svg.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import foveate_lab.eval.tasks  # noqa: F401  which registers the tasks
from benchmarks.output import demo, write
from benchmarks.quality.asking import ask_missing
from benchmarks.quality.named import short
from benchmarks.quality.profiles_made import PROFILES
from benchmarks.quality.same_questions import results_of
from foveate.loading.model import load
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.results import read
from foveate_lab.eval.tasks import find_task
from foveate_lab.report.heat import heat_maps

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "benchmarks" / "runs" / "needle_map"
PICTURE = ROOT / "docs" / "needle_map.svg"
TASK = "pages(pages=4/8/16/24/32/40,place=0/33/67/100)"
CELLS = 24
METHODS = (
    f"recommended:profile={PROFILES}/recommended.safetensors",
    "recommended",
    "kvzip",
    "snapkv:window=0.25",
    "mixkv:window=0.25",
    "keydiff:recent=0.25",
)


def answer_missing(each: int, specs: Sequence[str]) -> None:
    """Answer missing questions, ``each`` per cell."""
    task, loaded = find_task(TASK), load("demo")
    with results_of(RUNS, TASK, "query-agnostic") as results:
        for sample in task.samples(each * CELLS, 0):
            labels = dict(sample.labels)
            ask_missing(results, loaded, task, sample, specs, "query-agnostic", labels=labels)
            print(f"{int(sample.name) + 1} of {each * CELLS}", flush=True)


def drawn(answers: Sequence[Mapping[str, Any]]) -> str:
    """Draw the maps, the full cache's first, titled by short names."""
    scored = [
        {**row, "score": row["right"], "spec": short(row["spec"])}
        for row in answers
        if "right" in row
    ]
    scored.sort(key=lambda row: row["spec"] != FULL)
    (figure,) = heat_maps(scored)
    return figure.svg


def page(answers: Sequence[Mapping[str, Any]], budget: str) -> str:
    """Return right answers of each policy by the number of pages."""
    totals, right = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for row in answers:
        cell = row["spec"], row["labels"]["pages"]
        totals[cell] += 1
        right[cell] += int(row.get("right", 0))
    pages = sorted({count for _, count in totals})
    lines = [
        "# A page among many, by its place",
        "",
        f"Right answers of the {demo()}, letter by letter, at {budget} and before the question is "
        "known. All pages have the same four fields, of a person each; the one that is asked for "
        "stands first, at a third, at two thirds or last.",
        "",
        f"| policy | {' | '.join(f'{count} pages' for count in pages)} |",
        f"|---|{'---|' * len(pages)}",
    ]
    for spec in dict.fromkeys(spec for spec, _ in sorted(totals, key=lambda key: key[0] != FULL)):
        cells = " | ".join(f"{right[spec, n]} of {totals[spec, n]}" for n in pages)
        lines.append(f"| `{spec}` | {cells} |")
    return "\n".join(
        [*lines, "", "![The same by the place of the page](../../docs/needle_map.svg)"]
    )


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--each", type=int, default=2, help="questions of each cell")
    parser.add_argument("--budget", default="10%")
    a = parser.parse_args()
    answer_missing(a.each, contenders(METHODS, [a.budget]))
    answers = read(RUNS).rows
    PICTURE.write_text(drawn(answers) + "\n", encoding="utf-8")
    write("needle_map", page(answers, a.budget), {"each": a.each, "answers": answers})


if __name__ == "__main__":
    main()
