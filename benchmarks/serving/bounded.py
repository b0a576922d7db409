"""Long answers in vLLM on a CPU, stock and bounded: pages of a request over time.

    python -m benchmarks.serving.bounded [--answer 4000] [--write]      in vLLM's environment
    python -m benchmarks.serving.bounded --draw                         where matplotlib is

Twenty requests of 100 tokens generate thousands of tokens, in a pool with room for three complete
requests. All must finish. ``--write`` writes the table to benchmarks/results/serving.md and the
time series to serving_bounded.json, from which ``--draw`` makes serving_bounded.svg.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.output import RESULTS, write_data, write_part
from benchmarks.serving.load import PREEMPTED, counted, small
from benchmarks.serving.serving import BLOCK, engine, greedy, prompts

REQUESTS, PROMPT, WHOLE, EVERY = 20, 100, 3, 20
POLICY = "rkv:budget=128,every=64"
NAME = "serving_bounded"


class Moment(NamedTuple):
    """State at a time: running requests, and pages of the largest and of all of them."""

    seconds: float
    running: int
    largest: int
    pages: int


class Run(NamedTuple):
    """Totals of a run. ``ended``: requests that generated all of their tokens."""

    seconds: float
    steps: int
    ended: int
    preemptions: int
    moments: list[Moment]


def pool(answer: int) -> int:
    """Return the number of pages that three complete requests need."""
    return WHOLE * -(-(PROMPT + answer) // BLOCK)


def pages_of_requests(scheduler: Any) -> list[int]:
    """Return the number of pages of each running request."""
    (manager,) = scheduler.kv_cache_manager.coordinator.single_type_managers
    return [
        sum(not block.is_null for block in manager.req_to_blocks.get(request.request_id, ()))
        for request in scheduler.running
    ]


def answered(llm: Any, answer: int) -> Run:
    """Run all requests until they have ended."""
    front, scheduler = llm.llm_engine, llm.llm_engine.engine_core.engine_core.scheduler
    for name, prompt in enumerate(prompts(REQUESTS, PROMPT)):
        front.add_request(str(name), {"prompt_token_ids": prompt}, greedy(answer))
    moments, steps, ended = [], 0, 0
    before, start = counted(PREEMPTED), time.perf_counter()
    while front.has_unfinished_requests():
        done = [output for output in front.step() if output.finished]
        ended += sum(len(output.outputs[0].token_ids) == answer for output in done)
        if steps % EVERY == 0 and (pages := pages_of_requests(scheduler)):
            now = round(time.perf_counter() - start, 2)
            moments.append(Moment(now, len(pages), max(pages), sum(pages)))
        steps += 1
    seconds = time.perf_counter() - start
    return Run(seconds, steps, ended, round(counted(PREEMPTED) - before), moments)


def measured(model: str, answer: int) -> dict[str, Run]:
    """Run the benchmark under the policy, and stock."""
    runs = {}
    for name, policy in ((POLICY, POLICY), ("stock", None)):
        with engine(
            model,
            policy,
            num_gpu_blocks_override=pool(answer) + 1,
            max_model_len=PROMPT + answer,
            max_num_seqs=REQUESTS,
            disable_log_stats=False,
        ) as llm:
            runs[name] = answered(llm, answer)
    return runs


def table(runs: dict[str, Run], answer: int) -> str:
    """Return a table with a row per engine."""
    lines = [
        f"{REQUESTS} requests of {PROMPT} tokens, {answer:,} of answer each, in a pool of "
        f"{pool(answer)} pages of {BLOCK} tokens, which holds {WHOLE} of them whole; the model of "
        "the load above. `python -m benchmarks.serving.bounded --write` measures again.",
        "",
        "| | ended | seconds | steps | requests that run, on average | pages of the largest | "
        "preemptions |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        running = sum(moment.running for moment in run.moments) / len(run.moments)
        largest = max(moment.largest for moment in run.moments)
        label = name if name == "stock" else f"`{name}`"
        lines.append(
            f"| {label} | {run.ended} of {REQUESTS} | {run.seconds:.0f} | {run.steps:,} | "
            f"{running:.1f} | {largest} | {run.preemptions} |"
        )
    return "\n".join([*lines, "", f"![Pages of a request over time]({NAME}.svg)"])


def draw(runs: dict[str, list[Moment]]) -> str:
    """Plot pages of the largest request, and running requests, over time."""
    from foveate_lab.report.charts import axes, svg

    figure, (left, right) = axes(columns=2)
    for name, moments in runs.items():
        seconds = [moment.seconds for moment in moments]
        left.plot(seconds, [moment.largest for moment in moments], lw=1, label=name)
        right.plot(seconds, [moment.running for moment in moments], lw=1, label=name)
    left.set(xlabel="seconds", ylabel="pages of the largest request", ylim=(0, None))
    right.set(xlabel="seconds", ylabel="requests that run", ylim=(0, None))
    left.legend(frameon=False, fontsize=7)
    return svg(figure)


def main() -> None:
    """Measure and print; write, or draw what was written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answer", type=int, default=4000)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    if args.draw:
        stored = json.loads((RESULTS / f"{NAME}.json").read_text())
        moments = {
            name: [Moment(*moment) for moment in stored_moments]
            for name, stored_moments in stored.items()
        }
        (RESULTS / f"{NAME}.svg").write_text(draw(moments), encoding="utf-8")
        return
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_CI_ENV": "1"}
    with tempfile.TemporaryDirectory() as folder:
        runs = measured(small(Path(folder)), args.answer)
    text = table(runs, args.answer)
    print(text)
    if args.write:
        write_data(NAME, {name: run.moments for name, run in runs.items()})
        write_part("serving", "bounded", text)


if __name__ == "__main__":
    main()
