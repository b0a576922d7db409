r"""Targets for fitting the profile of `recommended`, compared on the same prompts and questions.

    python -m benchmarks.quality.targets [--samples 48] [--limit 40] \
        [--tasks eight_people document ...]

Calibrates missing profiles of the demo model for each target on the same drawn prompts. Then
answers questions about other pages (query-agnostic), continuing an earlier run, and writes
benchmarks/results/targets.md and .json. `--only-write` writes the results so far.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import demo, write
from benchmarks.quality.recipe import (
    DRAWS,
    LONG,
    MEAN,
    Run,
    answer_missing,
    answered,
    shares,
    table,
)
from foveate.cli.calibrate.prompts import contexts
from foveate.compression.labels import named
from foveate.defaults import SAMPLES
from foveate.hf.measuring.calibrate import calibrate
from foveate.loading.model import load
from foveate.methods.recommended.fitting import SecondReading
from foveate_lab.eval.answering.reading import FULL

RUNS = Path("benchmarks/runs/targets")
TARGETS = ("attention", "answers")
BUDGETS = "20%,10%,5%,3%"


def profile(target: str, samples: int) -> Path:
    """Return the demo model's profile fitted to one target, calibrated if missing."""
    path = RUNS / f"{target}-{samples}.safetensors"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    loaded, every = load("demo"), SecondReading.targets
    prompts, questions = tee(context.tokenized(loaded) for context in contexts(True, samples))
    SecondReading.targets = (target,)
    started = time.perf_counter()
    try:
        fitted = calibrate(
            loaded.model,
            "recommended",
            (prompt.inputs for prompt, _ in prompts),
            questions=(question for _, question in questions),
            progress=path.with_suffix(".part"),
        )
    finally:
        SecondReading.targets = every
    fitted.save(path)
    print(f"{path}: {time.perf_counter() - started:.0f} s")
    return path


def difference(rows: Sequence[Mapping[str, Any]], spec: str, base: str) -> str:
    """Return the difference in right answers, paired, with a 95 % bootstrap interval."""
    scores: dict[str, dict[str, float]] = {}
    for row in rows:
        scores.setdefault(row["spec"], {})[row["task"] + row["sample"]] = float(row["score"])
    keys = sorted(scores[base].keys() & scores[spec].keys())
    apart = np.array([scores[spec][key] - scores[base][key] for key in keys])
    drawn = np.random.default_rng(0).choice(apart, (DRAWS, len(apart))).mean(1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{apart.mean():+.2f} ({low:+.2f} to {high:+.2f})"


def differences(rows: Sequence[Mapping[str, Any]], specs: Mapping[str, str]) -> list[str]:
    """Return the difference of the last target to the first at each budget."""
    found: dict[str, dict[str, str]] = {}
    for spec in dict.fromkeys(row["spec"] for row in rows if row["spec"] != FULL):
        method, budget = named(spec)
        found.setdefault(budget, {})[method] = spec
    first, last = (f"recommended:profile={specs[t]}" for t in (TARGETS[0], TARGETS[-1]))
    cells = {b: difference(rows, of[last], of[first]) for b, of in found.items() if len(of) > 1}
    cells_text = ", ".join(f"{cell} at {budget}" for budget, cell in cells.items())
    return [f"`{TARGETS[-1]}` less `{TARGETS[0]}`, right answers: {cells_text}", ""]


def main() -> None:
    """Calibrate, answer questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="prompts of a profile")
    parser.add_argument("--limit", type=int, default=40, help="questions of each task")
    parser.add_argument("--tasks", nargs="+", default=[LONG[0], *MEAN])
    parser.add_argument("--budgets", default=BUDGETS)
    parser.add_argument("--only-write", action="store_true", help="write the results so far")
    a = parser.parse_args()
    specs = {target: profile(target, a.samples).as_posix() for target in TARGETS}
    methods = [f"recommended:profile={path}" for path in specs.values()]
    lines = [
        "# What the profile of `recommended` is fitted to",
        "",
        f"The {demo()}'s right answers, letter by letter, as shares of the full cache's, with 95 "
        "% intervals (bootstrap over questions, paired), before the question is known. The "
        f"profiles were fitted to the same {a.samples} prompts: `attention` to the most attention "
        "of a second reading, `answers` to what a pair's loss does to heads' outputs and to the "
        "model's own answers.",
        "",
    ]
    data: dict[str, Any] = {"samples": a.samples}
    for task in a.tasks:
        folder = RUNS / f"{a.samples}-{task}"
        if not a.only_write:
            answer_missing(
                Run("profile", task, methods, a.limit, a.budgets), "query-agnostic", folder
            )
        rows = answered(folder)
        if rows:
            data[task] = table(task, shares(rows, [task])) + differences(rows, specs)
            lines += data[task]
    write("targets", "\n".join(lines), data)


if __name__ == "__main__":
    main()
