"""Decoding steps over heads of different lengths on a CPU: attention alone, and full steps.

    python -m benchmarks.speed.ragged_step [--only attention steps] [--threads 1 2] [--turns 300]

* attention: a loop of products, PyTorch's flash attention, and dense heads with as many pairs, in
  turns; minima, which other processes disturb least, and medians;
* steps: SmolLM2-135M over 20 % of a prompt, with ragged heads and with dense ones, in turns.

Writes benchmarks/results/ragged_step.md and .json; a part that is left out stays as it was.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache, PreTrainedModel

import foveate
from benchmarks.output import CPU, earlier, write
from benchmarks.speed.scaling import TOKEN, drawn
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.loading.model import load
from foveate.ops.ragged_decode import by_products, flash_decode
from foveate_lab.bench import processor

TAIL = 20  # pairs of each head
SHAPES = (  # KV heads, query heads of each, head size, pairs of each head
    (3, 3, 64, (20, 60, 100)),
    (3, 3, 64, (60, 120, 180)),
    (3, 3, 64, (200, 410, 620)),
    (3, 3, 64, (400, 820, 1240)),
    (3, 3, 64, (1600, 3280, 4960)),
    (3, 3, 64, (6400, 13120, 19840)),
    (4, 7, 128, (100, 200, 300, 400)),
    (4, 7, 128, (400, 700, 1000, 1300)),
    (8, 4, 128, (20, 30, 40, 50, 60, 70, 80, 90)),
    (8, 4, 128, (400, 500, 600, 700, 800, 900, 1000, 1100)),
)
WAYS = ("loop", "flash", "dense")
LENGTHS, KEPT, HEADS = (1024, 2048, 4096, 16384, 65536), 0.2, ("dense", "ragged")
STEPS = 15
PARTS = ("attention", "steps")


@dataclass(frozen=True)
class Row:
    """Microseconds by implementation: minima, and medians."""

    heads: int
    groups: int
    size: int
    pairs: int
    threads: int
    least: dict[str, float]
    middle: dict[str, float]


def ways(h: int, g: int, d: int, lengths: tuple[int, ...]) -> dict[str, Callable[[], Tensor]]:
    """Return the timed calls."""
    f, n = sum(lengths), sum(lengths) // h + TAIL
    q, flat, tail = torch.randn(1, h * g, 1, d), torch.randn(2, f, d), torch.randn(2, 1, h, TAIL, d)
    dense_k, dense_v = torch.randn(2, 1, h, n, d)
    ragged = (q, *flat, list(lengths), *tail, d**-0.5, 0.0)
    dense = partial(scaled_dot_product_attention, q, dense_k, dense_v, enable_gqa=True)
    calls = (partial(by_products, *ragged), partial(flash_decode, *ragged), dense)
    torch.testing.assert_close(calls[0](), calls[1](), rtol=1e-4, atol=1e-5)
    return dict(zip(WAYS, calls, strict=True))


def measured(shape: tuple[int, int, int, tuple[int, ...]], threads: int, turns: int) -> Row:
    """Time all implementations in turns."""
    torch.set_num_threads(threads)
    calls = ways(*shape)
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(turns):
        for way, call in calls.items():
            start = time.perf_counter()
            call()
            taken[way].append(1e6 * (time.perf_counter() - start))
    least = {way: round(min(times), 1) for way, times in taken.items()}
    middle = {way: round(median(times), 1) for way, times in taken.items()}
    return Row(*shape[:3], sum(shape[3]), threads, least, middle)


def filled_cache(model: PreTrainedModel, tokens: int, heads: str) -> DynamicCache:
    """Build a cache with random pairs, the same total for any kind of heads."""
    with foveate.compress(model, foveate.full()) as session:
        cache = session.prefill(input_ids=TOKEN)
        for layer in foveate_layers(cache):
            layer.refill(drawn(model, tokens, KEPT, heads), tokens, tokens)
    return cache


def steps(model: PreTrainedModel, tokens: int) -> dict[str, float]:
    """Measure milliseconds per token with either heads; medians of turns in CPU time.

    The first turn allocates and is not counted. Other load of the machine does not affect CPU time.
    """
    caches = {heads: filled_cache(model, tokens, heads) for heads in HEADS}
    taken: dict[str, list[float]] = {heads: [] for heads in HEADS}
    with foveate.compress(model, foveate.full()):
        for turn in range(1 + STEPS):
            for heads in HEADS if turn % 2 else HEADS[::-1]:
                start = time.process_time()
                model(input_ids=TOKEN, **{CACHE: caches[heads]})
                taken[heads].append(1e3 * (time.process_time() - start))
    return {"tokens": tokens, **{heads: round(median(ms[1:]), 1) for heads, ms in taken.items()}}


def page(found: dict[str, Any]) -> str:
    """Return the page."""
    lines = [
        "# A decoding step over heads of different lengths", "",
        f"{found['machine']}, {found['cores']} cores, torch {found['torch']}, float32. "
        "`benchmarks/speed/ragged_step.py`.",
    ]  # fmt: skip
    if "attention" in found:
        lines += ["", "## Attention", "", *_attention(**found["attention"])]
    if "steps" in found:
        lines += ["", "## Whole steps", "", *_steps(**found["steps"])]
    return "\n".join(lines)


def _attention(rows: list[dict[str, Any]], turns: int, load: float) -> list[str]:
    return [
        f"Microseconds of one layer's attention, {TAIL} pairs in each tail: the least of {turns} "
        f"turns, and the median. Dense heads hold as many pairs in all. Load of the machine: "
        f"{load}.", "",
        "| KV heads | groups | size | pairs | threads | loop | flash | dense | flash to loop |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['heads']} | {row['groups']} | {row['size']} | {row['pairs']:,} "
            f"| {row['threads']} | "
            + " | ".join(f"{row['least'][way]:.0f}, {row['middle'][way]:.0f}" for way in WAYS)
            + f" | {_ratio(row['least'])}, {_ratio(row['middle'])} |"
            for row in rows
        ),
    ]  # fmt: skip


def _steps(rows: list[dict[str, Any]], turns: int, load: float) -> list[str]:
    return [
        f"SmolLM2-135M, {KEPT:.0%} of a prompt kept; milliseconds a token of one thread, by the "
        f"process's own clock, medians of {turns} turns. Ragged heads keep 50, 100 and 150 % of "
        f"the mean. Load of the machine: {load}.", "",
        "| prompt | dense heads | ragged heads | ragged to dense |", "|---|---|---|---|",
        *(
            f"| {row['tokens']:,} | {row['dense']:.1f} | {row['ragged']:.1f} "
            f"| {row['ragged'] / row['dense']:.2f} |"
            for row in rows
        ),
    ]  # fmt: skip


def _ratio(taken: dict[str, float]) -> str:
    return f"{taken['flash'] / taken['loop']:.2f}"


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=300)
    a = parser.parse_args()
    about = {"machine": processor(CPU), "torch": torch.__version__, "cores": os.cpu_count()}
    before = earlier("ragged_step")
    found = {**(before if about.items() <= before.items() else {}), **about}
    with torch.no_grad():
        if "attention" in a.only:
            rows = [measured(shape, n, a.turns) for n in a.threads for shape in SHAPES]
            found["attention"] = _part([asdict(row) for row in rows], a.turns)
        if "steps" in a.only:
            torch.set_num_threads(1)
            model = load("smollm2").model
            found["steps"] = _part([steps(model, tokens) for tokens in LENGTHS], STEPS)
    write("ragged_step", page(found), found)


def _part(rows: list[dict[str, Any]], turns: int) -> dict[str, Any]:
    return {"rows": rows, "turns": turns, "load": round(os.getloadavg()[0], 1)}


if __name__ == "__main__":
    main()
