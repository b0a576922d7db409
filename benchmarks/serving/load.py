"""vLLM under load on a CPU, stock and under a policy: throughput and latencies.

    python -m benchmarks.serving.load [--requests 192] [--rounds 2] [--clock wall|cpu] [--write]

Needs the environment of `make test-vllm`. Clients send a request as soon as their last is answered,
to a random Llama of a few layers, in a pool with room for half of the requests' full caches. The
clock starts once every client has had an answer, and stops after ``--requests`` more. Engines are
measured in turn, so that other load of the machine affects both; ``--clock cpu`` counts CPU seconds
of this process on a busy machine. ``--write`` writes the table to benchmarks/results/serving.md.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.output import write_part
from benchmarks.serving.serving import BLOCK, engine, greedy

CLIENTS, SHORTEST, LONGEST, ANSWER, POOL = 32, 750, 1250, 64, 16_384
POLICIES = (None, "mixkv:budget=20%")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SHAPE = {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "head": 32}
BUSY = {
    "wall": "",
    "cpu": ", beside other work of the machine: seconds are this process's, of one thread",
}
COMPRESSING = "foveate:compress_seconds"
PREEMPTED = "vllm:num_preemptions"


class Load(NamedTuple):
    """Measurements of a run.

    ``seconds`` on the clock; share of the time spent ``compressing``; seconds to each first token,
    and between two tokens of one request.
    """

    seconds: float
    compressing: float
    preemptions: int
    first: list[float]
    between: list[float]


def small(folder: Path) -> str:
    """Write the configuration of a Llama of a few layers, and return its folder."""
    from transformers import LlamaConfig

    LlamaConfig(
        vocab_size=4096,
        hidden_size=SHAPE["hidden"],
        intermediate_size=2 * SHAPE["hidden"],
        num_hidden_layers=SHAPE["layers"],
        num_attention_heads=SHAPE["heads"],
        num_key_value_heads=SHAPE["kv_heads"],
        head_dim=SHAPE["head"],
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    return str(folder)


def counted(name: str) -> float:
    """Return a counter's total in this process, over its labels."""
    from prometheus_client import REGISTRY

    return sum(
        float(sample.value)
        for family in REGISTRY.collect()
        if family.name == name
        for sample in family.samples
        if sample.name.endswith("_total")
    )


class Clients:
    """Clients with one request each at a time, drawn from ``seed``."""

    def __init__(self, llm: Any, seed: int, clock: Callable[[], float]):
        self._front, self._draw, self._clock = llm.llm_engine, random.Random(seed), clock
        self._number = 0
        self._sent: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self.clear()
        for _ in range(CLIENTS):
            self._send()

    def clear(self) -> None:
        """Forget the times so far."""
        self.first: list[float] = []
        self.between: list[float] = []

    def answered(self, requests: int) -> None:
        """Run until ``requests`` more have been answered."""
        left = requests
        while left > 0:
            for output in self._front.step():
                self._token(output.request_id)
                if output.finished:
                    left -= 1
                    del self._sent[output.request_id], self._last[output.request_id]
                    self._send()

    def leave(self) -> None:
        """Abort all requests."""
        self._front.abort_request(list(self._sent))
        while self._front.has_unfinished_requests():
            self._front.step()

    def _send(self) -> None:
        name, self._number = str(self._number), self._number + 1
        tokens = self._draw.randint(SHORTEST, LONGEST)
        prompt = [self._draw.randrange(3, 4000) for _ in range(tokens)]
        self._front.add_request(name, {"prompt_token_ids": prompt}, greedy(ANSWER))
        self._sent[name] = self._clock()

    def _token(self, name: str) -> None:
        now = self._clock()
        if name in self._last:
            self.between.append(now - self._last[name])
        else:
            self.first.append(now - self._sent[name])
        self._last[name] = now


def measured(llm: Any, requests: int, seed: int, clock: Callable[[], float]) -> Load:
    """Measure ``requests`` requests, after every client has had its first answer."""
    clients = Clients(llm, seed, clock)
    clients.answered(CLIENTS)
    clients.clear()
    before = [clock(), time.perf_counter(), counted(COMPRESSING), counted(PREEMPTED)]
    clients.answered(requests)
    after = [clock(), time.perf_counter(), counted(COMPRESSING), counted(PREEMPTED)]
    clients.leave()
    seconds, wall, compressing, preempted = (b - a for a, b in zip(before, after, strict=True))
    return Load(seconds, compressing / wall, round(preempted), clients.first, clients.between)


@contextmanager
def under_load(model: str, policy: str | None) -> Iterator[Any]:
    """Start an engine whose pool has room for half of the clients' requests."""
    with engine(
        model,
        policy,
        num_gpu_blocks_override=POOL // BLOCK + 1,
        max_num_seqs=CLIENTS,
        disable_log_stats=False,
    ) as llm:
        yield llm


def row(name: str, runs: list[Load], requests: int, stock: float) -> str:
    """Return one engine's row: medians over its runs, percentiles over all requests."""
    rate = statistics.median(requests / run.seconds for run in runs)
    first, between = ([t for run in runs for t in getattr(run, kind)] for kind in Load._fields[3:])
    cells = [name, f"{rate:.2f}", f"{rate / stock:.2f}"]
    for times in (first, between):
        cuts = statistics.quantiles(times, n=20)
        cells.append(f"{1000 * cuts[9]:.0f} / {1000 * cuts[18]:.0f}")
    cells.append(str(sum(run.preemptions for run in runs)))
    share = statistics.mean(run.compressing for run in runs)
    return "| " + " | ".join([*cells, f"{100 * share:.1f} %"]) + " |"


def table(model: str, requests: int, rounds: int, clock: Callable[[], float]) -> list[str]:
    """Measure the engines, and return a table with a row each."""
    runs: dict[str | None, list[Load]] = {policy: [] for policy in POLICIES}
    for seed in range(rounds):
        for policy in POLICIES:
            with under_load(model, policy) as llm:
                runs[policy].append(measured(llm, requests, seed, clock))
                print(policy, *runs[policy][-1][:3], flush=True)
    stock = statistics.median(requests / run.seconds for run in runs[None])
    lines = [
        "| | requests a second | to stock | first token, ms, median / 95 % | between tokens, ms, "
        "median / 95 % | preemptions | compressing, of all time |",
        "|---|---|---|---|---|---|---|",
    ]
    for policy, mine in runs.items():
        lines.append(row(f"`{policy}`" if policy else "stock", mine, requests, stock))
    return lines


def main() -> None:
    """Measure and print, and write with --write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_CI_ENV": "1"}
    with tempfile.TemporaryDirectory() as folder:
        lines = table(small(Path(folder)), args.requests, args.rounds, CLOCKS[args.clock])
    text = "\n".join(
        [
            f"{CLIENTS} clients, each with one request at a time: prompts of {SHORTEST} to "
            f"{LONGEST} tokens, {ANSWER} of answer, a pool of {POOL} tokens in blocks of {BLOCK}. "
            f"A random Llama of {SHAPE['layers']} layers of {SHAPE['hidden']}, "
            f"{SHAPE['heads']} query heads and {SHAPE['kv_heads']} KV heads of {SHAPE['head']}, in "
            f"float32; {args.rounds} runs of {args.requests} requests an engine, in turn"
            f"{BUSY[args.clock]}. "
            "`python -m benchmarks.serving.load --write` measures again.",
            "",
            *lines,
        ]
    )
    print(text)
    if args.write:
        write_part("serving", "load", text)


if __name__ == "__main__":
    main()
