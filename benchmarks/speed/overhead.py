"""Overhead of the `compress()` context beside a model's own work: mostly Python, for small models.

    python -m benchmarks.speed.overhead [--against CHECKOUT] [--turns 12]

A Llama of 28 narrow layers, with little work of its own: microseconds per layer of a prefill of 300
tokens and of a decoding step, beside the stock cache's, and per entry of the context. With another
checkout of Foveate the two take turns, each in its own process: CPU time of one thread, the minimum
of all turns, which other processes disturb least. Writes benchmarks/results/overhead.md and .json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

LAYERS, PROMPT, STEPS = 28, 300, 20
PREFILLS = ("snapkv:budget=20%", "mixkv:budget=20%", "h2o:budget=20%")
DECODED = ("snapkv:budget=20%", "adakv:budget=20%", "h2o:budget=20%,when=over_budget")
HERE = Path(__file__).resolve().parents[2]
ME = "benchmarks.speed.overhead"  # this module, as a process of its own


def measured(turns: int) -> dict[str, float]:
    """Return microseconds of each case, the minimum of all turns."""
    import foveate

    logging.getLogger("foveate").setLevel(logging.ERROR)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = small()
    ids = torch.randint(0, 100, (1, PROMPT))

    def read(cache: DynamicCache) -> None:
        model(input_ids=ids, past_key_values=cache, use_cache=True)

    def prefill() -> float:
        cache = DynamicCache(config=model.config)
        return timed(lambda: read(cache)) / LAYERS

    def step() -> float:
        cache = DynamicCache(config=model.config)
        read(cache)

        def steps(count: int) -> None:
            for _ in range(count):
                model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True)

        steps(1)
        return timed(lambda: steps(STEPS)) / STEPS / LAYERS

    def inside(spec: str, of: Callable[[], float]) -> float:
        with foveate.compress(model, spec):
            return of()

    def entry() -> float:
        def enter() -> None:
            with foveate.compress(model, PREFILLS[0]):
                pass

        return timed(enter)

    ways: dict[str, Callable[[], float]] = {"entry of a block": entry}
    ways |= {"prefill, stock": prefill, "step, stock": step}
    ways |= {f"prefill, {s}": (lambda s=s: inside(s, prefill)) for s in PREFILLS}  # type: ignore[misc]
    ways |= {f"step, {s}": (lambda s=s: inside(s, step)) for s in DECODED}  # type: ignore[misc]
    with torch.no_grad():
        for way in ways.values():
            way()
        return {name: min(way() for _ in range(turns)) for name, way in ways.items()}


def small() -> LlamaForCausalLM:
    """Build a model with little work of its own."""
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
    )
    model: LlamaForCausalLM = LlamaForCausalLM(config).eval()  # type: ignore[no-untyped-call]
    return model


def timed(work: Callable[[], object]) -> float:
    """Return microseconds of CPU time."""
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e6


def of_checkout(checkout: Path, turns: int) -> dict[str, float]:
    """Measure in a process that uses another checkout."""
    paths = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", ME, "--turns", str(turns), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def commit(checkout: Path) -> str:
    """Return the short commit hash of a checkout, as its name."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def page(found: dict[str, dict[str, float]], load: float) -> str:
    """Return a table of all cases, with the time added to the stock model's in brackets."""
    names = list(found)
    lines = [
        "# What a block adds around a model's own work",
        "",
        f"A Llama of {LAYERS} layers, width 64; a prompt of {PROMPT} tokens; microseconds of CPU",
        "time, one thread: per layer, and in brackets what that is more than the stock cache's.",
        f"The least of all turns; load of the machine: {load:.1f}. torch {torch.__version__}.",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---|' * len(names)}",
    ]
    for what in next(iter(found.values())):
        stock = f"{what.partition(',')[0]}, stock"
        cells = []
        for of in found.values():
            more = f" ({of[what] - of[stock]:+,.0f})" if stock in of and what != stock else ""
            cells.append(f"{of[what]:,.0f}{more}")
        lines.append(f"| {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout to compare with")
    parser.add_argument("--turns", type=int, default=12, help="turns of each case")
    parser.add_argument("--json", action="store_true", help="print only this checkout's figures")
    args = parser.parse_args()
    if args.json:
        print(json.dumps(measured(args.turns)))
        return
    from benchmarks.output import write

    checkouts = {"here": HERE} | ({commit(args.against): args.against} if args.against else {})
    found: dict[str, dict[str, float]] = {}
    for _ in range(3):
        for name, checkout in checkouts.items():
            new = of_checkout(checkout, args.turns)
            old = found.get(name, new)
            found[name] = {what: min(old[what], new[what]) for what in new}
    result: dict[str, Any] = {"load": os.getloadavg()[0], "microseconds": found}
    write("overhead", page(found, result["load"]), result)


if __name__ == "__main__":
    main()
