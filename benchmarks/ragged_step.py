"""One decoding step's attention over heads of different lengths on a CPU, in both ways there are.

    python benchmarks/ragged_step.py [--threads 1 2] [--turns 300]

The loop of products, PyTorch's flash attention, and what dense heads that hold as many pairs take,
in turns; minima, which other processes disturb least, and medians. Writes
benchmarks/results/ragged_step.md and .json.
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
from written import write

from foveate.bench import processor
from foveate.ops.ragged_decode import flash, reference

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


@dataclass(frozen=True)
class Row:
    """Microseconds of each way: minima, and medians."""

    heads: int
    groups: int
    size: int
    pairs: int
    threads: int
    least: dict[str, float]
    middle: dict[str, float]


def ways(h: int, g: int, d: int, lengths: tuple[int, ...]) -> dict[str, Callable[[], Tensor]]:
    """What is timed."""
    f, n = sum(lengths), sum(lengths) // h + TAIL
    q, flat, tail = torch.randn(1, h * g, 1, d), torch.randn(2, f, d), torch.randn(2, 1, h, TAIL, d)
    dense_k, dense_v = torch.randn(2, 1, h, n, d)
    ragged = (q, *flat, list(lengths), *tail, d**-0.5, 0.0)
    dense = partial(scaled_dot_product_attention, q, dense_k, dense_v, enable_gqa=True)
    calls = (partial(reference.by_products, *ragged), partial(flash.ragged_decode, *ragged), dense)
    torch.testing.assert_close(calls[0](), calls[1](), rtol=1e-4, atol=1e-5)
    return dict(zip(WAYS, calls, strict=True))


def measured(shape: tuple[int, int, int, tuple[int, ...]], threads: int, turns: int) -> Row:
    """All ways in turns."""
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


def page(about: dict[str, Any], rows: list[Row]) -> str:
    """The table."""
    lines = [
        "# A decoding step over heads of different lengths", "",
        f"Microseconds of one layer's attention, float32, {TAIL} pairs in each tail, "
        f"{about['machine']}, torch {about['torch']}: the least of {about['turns']} turns, and the "
        f"median. Dense heads hold as many pairs in all. Load of the machine, on {about['cores']} "
        f"cores: {about['load']}. `benchmarks/ragged_step.py`.", "",
        "| KV heads | groups | size | pairs | threads | loop | flash | dense | flash to loop |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        cells = [f"{row.least[way]:.0f}, {row.middle[way]:.0f}" for way in WAYS]
        ratios = f"{_ratio(row.least)}, {_ratio(row.middle)}"
        lines.append(
            f"| {row.heads} | {row.groups} | {row.size} | {row.pairs:,} | {row.threads} "
            f"| {' | '.join(cells)} | {ratios} |"
        )
    return "\n".join(lines)


def _ratio(taken: dict[str, float]) -> str:
    return f"{taken['flash'] / taken['loop']:.2f}"


def main() -> None:
    """Measures, and writes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--turns", type=int, default=300)
    a = parser.parse_args()
    with torch.no_grad():
        rows = [measured(shape, threads, a.turns) for threads in a.threads for shape in SHAPES]
    about = {
        "machine": processor(torch.device("cpu")),
        "torch": torch.__version__,
        "turns": a.turns,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    write("ragged_step", page(about, rows), {**about, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
