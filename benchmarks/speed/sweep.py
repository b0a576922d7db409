"""Cost of a sweep: one prefill for many policies, beside a run for each policy.

    python -m benchmarks.speed.sweep [--samples 3]

12 methods at 3 budgets on the demo model. The same samples are answered three times: all policies
from one prefill, as `foveate eval` does; each policy in an evaluation of its own; and each in a
`generate` of its own, which gives the answer and none of the measures. Answers are compared. Writes
benchmarks/results/sweep.md and .json, with the size of the sweep's report.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.progress import track

from benchmarks.output import demo, write
from foveate.compression.composition import policy
from foveate.hf import compress
from foveate.loading.model import Loaded, load
from foveate.prompts.prompt import read
from foveate.prompts.sample import Sample
from foveate_lab.cli.eval import evaluate
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.task_registry import TASKS
from foveate_lab.report.page import page

TASK = "three_documents"
PROTOCOL: Protocol = "query-aware"
METHODS = (
    "snapkv:window=0.25",
    "mixkv:window=0.25",
    "adakv:window=0.25",
    "pyramidkv:window=0.25",
    "prefixkv:when=after_prefill",
    "csp",
    "david",
    "lookm",
    "h2o",
    "tova",
    "knorm:recent=0.25",
    "streaming_llm",
)
BUDGETS = ("33%", "20%", "10%")


def together(loaded: Loaded, sample: Sample, specs: Sequence[str]) -> list[str]:
    """Return answers of all policies from one prefill."""
    rows = measured(loaded, TASKS[TASK], sample, specs, PROTOCOL)  # not in the order of specs
    answers = {row["spec"]: str(row["prediction"]) for row in rows}
    return [answers[spec] for spec in specs]


def apart(loaded: Loaded, sample: Sample, specs: Sequence[str]) -> list[str]:
    """Return answers of one evaluation for each policy."""
    return [together(loaded, sample, [spec])[0] for spec in specs]


def generated(loaded: Loaded, sample: Sample, specs: Sequence[str]) -> list[str]:
    """Return answers of one ``generate`` for each policy."""
    prompt = read(loaded, sample.text, list(sample.images), plain=sample.plain)
    n, answers = prompt.tokens, []
    for spec in specs:
        with compress(loaded.model, policy(spec)):
            done = loaded.model.generate(  # type: ignore[operator]
                **prompt.inputs, max_new_tokens=TASKS[TASK].longest, do_sample=False
            )
        answers.append(loaded.tokenizer.decode(done[0, n:], skip_special_tokens=True).strip())
    return answers


def report_of(samples: int) -> int:
    """Return the bytes of the report of a sweep over ``samples`` samples."""
    with TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        evaluate(
            out=run,
            tasks=TASK,
            methods=",".join(METHODS),
            budgets=",".join(BUDGETS),
            model="demo",
            protocol=PROTOCOL,
            limit=samples,
        )
        return len(page(run).encode())


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=3)
    a = parser.parse_args()
    loaded, specs = load("demo"), contenders(METHODS, BUDGETS)
    samples = list(TASKS[TASK].samples(a.samples + 1, 0))
    ways: dict[str, Any] = {
        "one prefill": together,
        "an evaluation each": apart,
        "`generate` each": generated,
    }
    for way in ways.values():
        way(loaded, samples[-1], specs[:2])  # the first call is slow
    found: dict[str, list[float]] = {name: [] for name in ways}
    same = dict.fromkeys(ways, 0)
    for sample in track(samples[:-1], "sweeping"):
        expected: list[str] = []
        for name, way in ways.items():
            start = time.perf_counter()
            answers = way(loaded, sample, specs)
            found[name].append(time.perf_counter() - start)
            expected = expected or answers
            same[name] += sum(x == y for x, y in zip(answers, expected, strict=True))
    size, count = report_of(a.samples), len(specs) * a.samples
    base = sum(found["one prefill"])
    lines = [
        "# What a sweep costs",
        "",
        f"Foveate's {demo()}, {torch.get_num_threads()} threads, {len(METHODS)} methods at "
        f"{len(BUDGETS)} budgets, {a.samples} samples of `{TASK}`, {PROTOCOL}.",
        "",
        "| way | seconds a sample | to one prefill | same answers |",
        "|---|---|---|---|",
        *(
            f"| {name} | {sum(times) / a.samples:.1f} | {sum(times) / base:.1f} | "
            f"{same[name]} of {count} |"
            for name, times in found.items()
        ),
        "",
        f"The report on these answers, drawings included, has {size / 1e6:.2f} MB.",
        "",
    ]
    write(
        "sweep",
        "\n".join(lines),
        {"seconds": found, "same": same, "policies": specs, "report_bytes": size},
    )


if __name__ == "__main__":
    main()
