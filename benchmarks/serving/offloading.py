"""A second question about a context that vLLM's pool has lost, and its connector has kept.

    python -m benchmarks.serving.offloading [--rounds 5] [--write]

Needs the environment of `make test-vllm`, and runs from a checkout: vLLM's worker for offloading
needs a GPU, so the worker of the tests takes its place, which copies blocks between two tensors of
the same memory. Everything else is vLLM's OffloadingConnector. The model is that of ``serving``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.output import table, write_part
from benchmarks.serving.serving import (
    CONTEXT,
    PROMPT,
    SNAPKV,
    engine,
    first_token,
    prompts,
    write_model,
)

POOL, STORE, FILLERS = 80, 1 << 30, 4
ANEW, POOLED, LOADED, WHOLE = (
    "read anew",
    "compressed, in the pool",
    "compressed, loaded",
    "whole (`full`), loaded",
)
DECLARED, FULL = {"foveate_context": CONTEXT}, {"foveate_policy": "full"}


def fill(llm: Any, seed: int) -> None:
    """Send other prompts, until the pool has lost what it had."""
    for prompt in prompts(FILLERS, PROMPT, seed):
        first_token(llm, prompt, **FULL)


def round_of(llm: Any, moved: dict[str, int], seed: int) -> Iterator[tuple[str, float, int, int]]:
    """Yield, by case, seconds to the first token, tokens shared and bytes loaded."""

    def ask(case: str, context: list[int], extra: dict[str, Any]) -> tuple[str, float, int, int]:
        (question,) = prompts(1, PROMPT - CONTEXT, next(seeds))
        before = moved["load"]
        return case, *first_token(llm, context + question, **extra), moved["load"] - before

    seeds = iter(range(100 * seed, 100 * seed + 100))
    context, whole = prompts(2, CONTEXT, next(seeds))
    yield ask(ANEW, context, DECLARED)
    yield ask(POOLED, context, DECLARED)
    ask(ANEW, whole, FULL)
    fill(llm, next(seeds))
    yield ask(LOADED, context, DECLARED)
    yield ask(WHOLE, whole, FULL)


def measure(model: str, rounds: int) -> dict[str, list[tuple[float, int, int]]]:
    """Measure all cases in turn, in one engine; the first round warms up."""
    offloaded: Any = import_module("tests.serving.offloaded")
    found: dict[str, list[tuple[float, int, int]]] = {}
    options = {"num_gpu_blocks_override": POOL, **offloaded.offloading(STORE)}
    with engine(model, SNAPKV, caching=True, **options) as llm:
        for seed in range(rounds + 1):
            for case, seconds, shared, loaded in round_of(llm, offloaded.MOVED, 1 + seed):
                if seed:
                    found.setdefault(case, []).append((seconds, shared, loaded))
    return found


def lines_of(found: dict[str, list[tuple[float, int, int]]]) -> list[str]:
    """Return the table; ratios are medians over rounds of one case to reading anew beside it."""
    rows = []
    for case, runs in found.items():
        seconds = statistics.median(run[0] for run in runs)
        pairs = zip(runs, found[ANEW], strict=True)
        ratio = statistics.median(run[0] / anew[0] for run, anew in pairs)
        shared, loaded = {run[1] for run in runs}, {run[2] for run in runs}
        if len(shared) > 1 or len(loaded) > 1:
            raise RuntimeError(f"{case}: rounds shared {shared} tokens and loaded {loaded} bytes")
        size = f"{loaded.pop() / 2**20:.1f}"
        rows.append([case, f"{ratio:.2f}", f"{seconds:.3f}", size, f"{shared.pop()} of {PROMPT}"])
    heads = ["the context", "first token, to reading anew", "s", "MiB loaded", "tokens not read"]
    return table(heads, rows)


def main() -> None:
    """Measure and print, and write with --write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_CI_ENV": "1"}
    with tempfile.TemporaryDirectory() as folder:
        model, _ = write_model(Path(folder))
        lines = [
            f"A context of {CONTEXT} tokens and questions of {PROMPT - CONTEXT}, under `{SNAPKV}`, "
            f"in a pool of {POOL} blocks that loses the context to {FILLERS} other prompts. vLLM's "
            "OffloadingConnector with the tests' worker, which copies blocks within the machine's "
            f"memory: no bus to a GPU is in it. Medians of {args.rounds} rounds in one engine, "
            "beside other work of the machine. "
            "`python -m benchmarks.serving.offloading --write` measures again.",
            "",
            *lines_of(measure(model, args.rounds)),
        ]
    print("\n".join(lines))
    if args.write:
        write_part("serving", "offloading", "\n".join(lines))


if __name__ == "__main__":
    main()
