"""Right answers with fewer tokens, fewer pairs and fewer bits, alone and together, at equal bytes.

    python -m benchmarks.quality.stack [--limit 12] [--tasks ...] [--protocols ...]

A budget is a share of each prompt's full cache in bytes. Pairs alone evict down to it; bits alone
store all pairs in as many bits as fit; tokens alone compute as few visual tokens as needed. A split
stores pairs in 8, 4 or 2 bits and evicts the excess. It may also compute fewer tokens: the square
root of the share of pairs kept at the end, or so few that nothing is left to evict. The demo model
answers the same questions query-aware and query-agnostic; DivPrune prunes tokens before the first
layer. Answers are stored one by one under benchmarks/runs/stack, so that a later run continues.
With other weights, or other code of the same version, give another --runs. Writes
benchmarks/results/stack.md, .json and .svg.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import torch

import foveate_lab.eval.tasks  # noqa: F401  which registers the tasks
from benchmarks.output import RESULTS, write
from benchmarks.quality.asking import ask_missing
from benchmarks.quality.same_questions import results_of
from benchmarks.quality.stack_page import measured, page, plot
from benchmarks.quality.stack_splits import SHARES, Sizes, specs_at
from foveate.loading.model import Loaded, load
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import read_prompt
from foveate_lab.eval.task_registry import TASKS, Task

RUNS = Path(__file__).parents[1] / "runs" / "stack"
ASKED = ("three_documents", "document", "chart", "naming")


def sizes_of(loaded: Loaded, task: Task, sample: Sample, protocol: Protocol) -> Sizes:
    """Return the sizes of the compressed part of a sample's prompt."""
    reading = read_prompt(loaded, task, sample, protocol, timed=False, longest_prompt=None)
    return Sizes(reading.cut, int(reading.prompt.vision[: reading.cut].sum()))


def answer_missing(
    runs: Path, protocols: Sequence[Protocol], tasks: Sequence[str], limit: int
) -> None:
    """Answer what is missing of the first questions of each task, question by question."""
    with ExitStack() as stack:
        results_by = {
            (protocol, task): stack.enter_context(
                results_of(runs / protocol / task, task, protocol)
            )
            for protocol in protocols
            for task in tasks
        }
        drawn = {task: list(TASKS[task].samples(limit, 0)) for task in tasks}
        loaded = load("demo")
        for index in range(limit):
            for (protocol, task), results in results_by.items():
                sample = drawn[task][index]
                sizes = sizes_of(loaded, TASKS[task], sample, protocol)
                specs = [s for share in SHARES for s in specs_at(share, sizes).values()]
                arguments = (results, loaded, TASKS[task], sample, specs, protocol)
                ask_missing(*arguments, visual=sizes.visual)
            print(f"{index + 1} of {limit} questions of each task", flush=True)


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=12, help="questions of each task, or 0")
    parser.add_argument("--tasks", nargs="+", default=ASKED)
    parser.add_argument(
        "--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol)
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the answers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.limit:
        answer_missing(args.runs, args.protocols, args.tasks, args.limit)
    measurements = {
        protocol: measured(args.runs, protocol, args.tasks) for protocol in args.protocols
    }
    write("stack", page(measurements, args.tasks), measurements)
    (RESULTS / "stack.svg").write_text(plot(measurements), encoding="utf-8")


if __name__ == "__main__":
    main()
