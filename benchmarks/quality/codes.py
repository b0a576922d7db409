r"""Answers from pairs in few bits: TurboQuant beside KIVI, with all pairs and with half of them.

    python -m benchmarks.quality.codes [--limit 60] [--only-write]

Asks the demo model, and goes on where it was interrupted; then writes benchmarks/results/codes.md
and .json, of the tasks that are complete: right answers, letter by letter, as shares of the full
cache's, with 95 % intervals (bootstrap over questions, paired), and the bytes stored after the
prompt. Also measures TurboQuant's errors on the model's own keys and values beside the paper's
bounds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from benchmarks.output import demo, table, write
from benchmarks.quality.recipe import (
    MEAN,
    PROFILES,
    RUNS,
    Run,
    answer_missing,
    answered,
    cell_text,
    parsed,
    shares,
)
from foveate.cache.layer import Layer
from foveate.loading.model import load
from foveate.ops import turbo_codes
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import read_prompt
from foveate_lab.eval.summary import Estimate, mean_difference
from foveate_lab.eval.task_registry import TASKS

PROTOCOL: Protocol = "query-aware"
KEEP = f"recommended(profile={PROFILES}/recommended.safetensors)"
KIVI = "kivi(bits=4,group=64,residual=0)"
TURBO_HALF = f"{KEEP}+turboquant(bits=4):budget=50%"
KIVI_SAME_BYTES = f"{KEEP}+{KIVI}:budget=44%"  # a pair of KIVI's takes 12 % more bytes
METHODS = (
    "turboquant:bits=4",
    "turboquant:bits=3",
    "turboquant:bits=2",
    "turboquant:bits=4,sketch=true",
    "kivi:bits=4,group=64,residual=0",
    "kivi:bits=2,group=64,residual=0",
    f"{KEEP}:budget=50%",
    TURBO_HALF,
    f"{KEEP}+turboquant(bits=3):budget=50%",
    f"{KEEP}+{KIVI}:budget=47%",
    KIVI_SAME_BYTES,
)
FOLDER = RUNS.parent / "codes"


def bytes_share(rows: Sequence[Mapping[str, Any]], spec: str) -> float:
    """Return a policy's bytes over the full cache's, the mean of all questions."""
    own = [row for row in rows if row["spec"] == spec]
    return mean(float(row["kv_bytes"] / row["kv_bytes_full"]) for row in own)


def lines_of(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[str]:
    """Return a line per policy: its bytes, all tasks' share, and each task's."""
    of_tasks = [shares([row for row in rows if row["task"] == task], [task]) for task in tasks]
    cells = [
        [f"`{spec}`", f"{bytes_share(rows, spec):.3f}", cell_text(share)]
        + [cell_text(of_task[spec]) for of_task in of_tasks]
        for spec, share in shares(rows, tasks).items()
    ]
    return table(["policy", "bytes", "mean of the tasks", *tasks], cells)


def difference(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Estimate:
    """Return how many more answers are right under TurboQuant than under KIVI, as a share."""
    right: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for row in rows:
        if row["task"] in tasks:
            right[row["spec"]][row["task"], row["sample"]] = float(row["score"])
    turbo, kivi = right[TURBO_HALF], right[KIVI_SAME_BYTES]
    return mean_difference(turbo[key] - kivi[key] for key in sorted(turbo.keys() & kivi.keys()))


def lines_of_difference(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> list[str]:
    """Return a line per task, and one of all: TurboQuant minus KIVI, over the same questions."""
    asked = {row["task"] for row in rows if row["spec"] == KIVI_SAME_BYTES}
    cells, tasks = [], [task for task in tasks if task in asked]
    for name, own in [("all", tasks), *((task, [task]) for task in tasks)]:
        x = difference(rows, own)
        cells.append([name, x.count, f"{x.mean:+.3f}", f"{x.low:+.3f}", f"{x.high:+.3f}"])
    return table(["task", "questions", "difference", "from", "to"], cells)


def demo_layers(prompts: int = 2) -> Iterator[Layer]:
    """Yield the demo model's layers of drawn prompts of every task, with keys after RoPE."""
    loaded = load("demo")
    for task in MEAN:
        for sample in TASKS[task].samples(prompts, 1):
            reading = read_prompt(
                loaded, TASKS[task], sample, PROTOCOL, timed=False, longest_prompt=None
            )
            yield from reading.recorded(sums=False).recording.layers


def vector_error(x: Tensor, bits: int) -> Tensor:
    """Return the squared error of each vector over its squared norm (Algorithm 1)."""
    decoded = turbo_codes.decode(*turbo_codes.encode(x, bits), x.shape[1], bits)
    found: Tensor = (decoded - x).square().sum(-1) / x.square().sum(-1).clamp_min(1e-30)
    return found


def product_error(layer: Layer, bits: int) -> Tensor:
    """Return d times the squared error of q k over |q|^2 |k|^2, of every pair (Algorithm 2)."""
    k, d = layer.k.flatten(0, 2), layer.k.shape[-1]
    decoded = turbo_codes.decode(*turbo_codes.encode(k, bits, sketch=True), d, bits)
    error = (decoded - k).view_as(layer.k).repeat_interleave(layer.groups, 1)
    keys = layer.k.repeat_interleave(layer.groups, 1)
    products = layer.q @ error.mT / layer.q.norm(dim=-1)[..., None]
    found: Tensor = d * (products / keys.norm(dim=-1)[:, :, None]).square()
    return found


def errors() -> dict[int, dict[str, float]]:
    """Return the mean errors on the demo's keys and values, and the paper's bounds, by bits."""
    sums: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for layer in demo_layers():
        for bits in (1, 2, 3, 4):
            for name, x in (("keys", layer.k), ("values", layer.v)):
                error = vector_error(x.flatten(0, 2), bits)
                sums[bits][name].append(float(error.mean()))
            if bits > 1:
                sums[bits]["products"].append(float(product_error(layer, bits).mean()))
    bound = math.sqrt(3) * math.pi / 2
    return {
        bits: {name: mean(each) for name, each in of_bits.items()}
        | {"bound": bound * 4**-bits, "product_bound": bound * math.pi * 2 * 4**-bits}
        for bits, of_bits in sums.items()
    }


def lines_of_errors(found: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Return a line per number of bits."""
    names = ("keys", "values", "bound", "products", "product_bound")
    cells = [
        [bits, *(f"{row[name]:.4f}" if name in row else "" for name in names)]
        for bits, row in sorted(found.items())
    ]
    heads = ["bits", "keys", "values", "bound", "products, with the sketch", "bound of these"]
    return table(heads, cells)


@torch.inference_mode()
def main() -> None:
    """Ask what is missing, then write the page."""
    a = parsed(__doc__)
    for task in MEAN if not a.only_write else ():
        answer_missing(Run("codes", task, METHODS, a.limit, ""), PROTOCOL, FOLDER / task)
    of_tasks = {task: answered(FOLDER / task) for task in MEAN}
    tasks = [
        task for task, own in of_tasks.items() if len({row["sample"] for row in own}) == a.limit
    ]
    rows = [row for task in tasks for row in of_tasks[task]]
    found = errors()
    text = [
        "# Answers from pairs in few bits",
        "",
        f"The {demo()} in float32, {PROTOCOL}, {a.limit} questions per task. Right answers, letter "
        "by letter, as shares of the full cache's, with 95 % intervals (bootstrap over questions, "
        "paired). Bytes are all that is stored after the prompt, codes, norms or scales and "
        "positions, over those of the full cache in float32.",
        "",
        *lines_of(rows, tasks),
        "",
        "## TurboQuant minus KIVI at the same bytes",
        "",
        f"`{TURBO_HALF}` minus `{KIVI_SAME_BYTES}`: share of questions answered right, the same "
        f"questions under both. Bytes: {bytes_share(rows, TURBO_HALF):.3f} and "
        f"{bytes_share(rows, KIVI_SAME_BYTES):.3f} of the full cache's.",
        "",
        *lines_of_difference(rows, tasks),
        "",
        "## Errors beside the paper's bounds",
        "",
        "Keys (after RoPE) and values of all layers and heads, of two prompts of each task: mean "
        "squared error over the squared norm, beside Theorem 1's bound. With the sketch: the mean "
        "of d (q k - q k')^2 / (|q|^2 |k|^2) over all queries and keys of a prompt, beside "
        "Theorem 2's bound.",
        "",
        *lines_of_errors(found),
    ]
    write("codes", "\n".join(text), {"rows": rows, "errors": found})


if __name__ == "__main__":
    main()
