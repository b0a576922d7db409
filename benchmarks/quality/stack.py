"""What computing fewer tokens, holding fewer pairs and holding them in fewer bits leave of the
answers, alone and together, at the same bytes.

    python -m benchmarks.quality.stack [--limit 12] [--tasks ...] [--protocols ...]

A budget is a share of the full cache's bytes, of every prompt. Pairs alone evict down to it; bits
alone hold all pairs in as many bits as fit; tokens alone compute as few visual tokens as it takes.
A split holds what it holds in 8, 4 or 2 bits and evicts what that leaves too much, and may compute
fewer tokens before: the square root of the share that is held at last, or, where tokens come last,
so few that nothing is left to evict. The same questions are asked of the demo model with the
question at hand and before it is known; tokens are pruned by DivPrune, before the first layer.
Answers are written down one by one under benchmarks/runs/stack, and a run goes on where it was
broken off; with other weights or other code of the same version, give another --runs. Writes
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
from benchmarks.quality.asking import ask_missing
from benchmarks.quality.same_questions import results_of
from benchmarks.quality.stack_page import measured, page, plot
from benchmarks.quality.stack_splits import SHARES, Sizes, specs_at
from benchmarks.written import RESULTS, write
from foveate.loading.model import Loaded, load
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import read_prompt
from foveate_lab.eval.task_registry import TASKS, Task

RUNS = Path(__file__).parents[1] / "runs" / "stack"
ASKED = ("three_documents", "document", "chart", "naming")


def sizes_of(loaded: Loaded, task: Task, sample: Sample, protocol: Protocol) -> Sizes:
    """Of what is compressed of a sample's prompt."""
    reading = read_prompt(loaded, task, sample, protocol, timed=False, longest_prompt=None)
    return Sizes(reading.cut, int(reading.prompt.vision[: reading.cut].sum()))


def ask(runs: Path, protocols: Sequence[Protocol], tasks: Sequence[str], limit: int) -> None:
    """Asks what is missing of the first questions of each task, question by question."""
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
        for place in range(limit):
            for (protocol, task), results in results_by.items():
                sample = drawn[task][place]
                sizes = sizes_of(loaded, TASKS[task], sample, protocol)
                wanted = [s for share in SHARES for s in specs_at(share, sizes).values()]
                of = (results, loaded, TASKS[task], sample, wanted, protocol)
                ask_missing(*of, visual=sizes.visual)
            print(f"{place + 1} of {limit} questions of each task", flush=True)


def main() -> None:
    """Asks, and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=12, help="questions of each task; 0 asks none")
    parser.add_argument("--tasks", nargs="+", default=ASKED)
    parser.add_argument(
        "--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol)
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="where the answers go")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.limit:
        ask(given.runs, given.protocols, given.tasks, given.limit)
    measurements = {
        protocol: measured(given.runs, protocol, given.tasks) for protocol in given.protocols
    }
    write("stack", page(measurements, given.tasks), measurements)
    (RESULTS / "stack.svg").write_text(plot(measurements), encoding="utf-8")


if __name__ == "__main__":
    main()
