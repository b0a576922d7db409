"""Time and memory of methods on a CPU, beside the stock model and kvpress.

    bash benchmarks/speed/kvpress_env.sh .venv-kvpress
    python -m benchmarks.speed.cpu --kvpress .venv-kvpress/bin/python [--tokens 4096] [--rounds 8]

SmolLM2-135M-Instruct, float32, on Linux with glibc; needs greenlet. Writes
benchmarks/results/cpu.md and .json. With --only memory (or another part) the others stay as they
were measured before, on the same machine and with the same versions.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from statistics import mean, median
from typing import Any

import torch
from rich.progress import Progress
from torch.nn.functional import scaled_dot_product_attention as sdpa

import foveate
from benchmarks import output
from benchmarks.output import machine, write, write_data
from benchmarks.processes import apart
from benchmarks.speed.cpu_page import AT_END, SPECS, WINDOWS, page
from benchmarks.speed.lockstep import WARM_UP, prefills
from foveate.cache.pairs import DensePairs
from foveate.hf import compress
from foveate.hf.attention.grouped import attend_folded
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.loading.model import Loaded, load
from foveate_lab.bench import Subject, bench, of_dims, of_model
from foveate_lab.bench.measure import ticks
from foveate_lab.bench.memory import freed_at_once, peak_of
from foveate_lab.bench.peer import kvpress
from foveate_lab.bench.timing import FilledCache, Tick, decoding, prefill, seconds, steps, stock

KEPT, CHUNK = "20%", 256
PEERS_ROUNDS = 3  # at most, where compared figures differ by far more than rounds do
PEERS = ("full", "snapkv", "adakv", "h2o")
RULES = (
    "prefixkv",
    "prefixkv:when=fixed_slot(every=16)",
    "h2o:when=over_budget",
    "h2o:when=over_budget(every=16)",
    "csp:decode_n=1.0",
)
SHAPES = {  # KV heads, query heads of each, size
    "SmolLM2-135M": (3, 3, 64),
    "Qwen2-VL-7B": (4, 7, 128),
}
ROWS = len(SPECS) + 1  # the full cache, too
TICKS: dict[str, Callable[[int], int | None]] = {  # number of progress ticks of each part
    "prefill": lambda rounds: ticks(ROWS, rounds) + ROWS * (WARM_UP - 1),  # bench warms up once
    "rules": lambda rounds: ticks(len(RULES) + 1, 1),
    "attention": lambda rounds: None,
    "half": lambda rounds: None,
    "decoding": lambda rounds: None,
    "memory": lambda rounds: None,
    "kvpress": lambda rounds: None,
    "again": lambda rounds: len(WINDOWS) * (WARM_UP + rounds),
}
PARTS = tuple(TICKS)
ON_ITS_OWN = "half"  # takes hours if the processor lacks bfloat16; the page does not need it


def policy_of(spec: str) -> foveate.Policy:
    """Return the policy at the benchmark's budget."""
    return foveate.policy(spec) if spec == "full" else foveate.policy(spec, budget=KEPT)


def same_bytes(subject: Subject, short: Subject, rounds: int, count: int) -> dict[str, float]:
    """Compare decoding of kept pairs with a full cache of as many pairs; median ratios.

    The full cache is preallocated, and its prompt is shorter.
    """
    with torch.no_grad():
        plain = prefill(short, foveate.full())
        kept = {spec: prefill(subject, policy_of(spec)) for spec in ("snapkv", "adakv")}
        found: dict[str, list[float]] = {spec: [] for spec in kept}
        for _ in range(rounds):
            base = steps(short, plain, count)
            for spec, filled in kept.items():
                found[spec].append(steps(subject, filled, count) / base)
    return {spec: median(ratios) for spec, ratios in found.items()}


def masked(subject: Subject, rounds: int, count: int) -> tuple[float, float]:
    """Return seconds per token over AdaKV's kept pairs, and over all pairs with a mask; medians."""
    with torch.no_grad():
        kept, full = prefill(subject, policy_of("adakv")), prefill(subject, foveate.full())
        share = kept.stats.bytes_after / kept.stats.bytes_before
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(steps(subject, kept, count))
            theirs.append(masked_steps(subject, full, share, count))
    return median(ours), median(theirs)


def masked_steps(subject: Subject, full: FilledCache, share: float, count: int) -> float:
    """Return mean seconds of decoding steps over a full cache with a random mask.

    Every head may attend to ``share`` of the pairs.
    """
    token, heads = subject.ids[:, -1:], subject.model.config.num_attention_heads
    seen = torch.rand(1, heads, 1, subject.ids.shape[1]) < share
    times = []
    with compress(subject.model, full.policy) as session:
        cache = session.fork(full.cache)
        for _ in range(count + 1):
            seen = torch.cat([seen, torch.ones(1, heads, 1, 1, dtype=torch.bool)], dim=-1)
            times.append(
                seconds(
                    lambda mask=seen: subject.model(  # type: ignore[misc]
                        input_ids=token, **{CACHE: cache}, attention_mask=mask
                    ),
                    subject.device,
                )
            )
    return mean(times[1:])


def attention(tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Measure the attention of one decoding step in a layer, in milliseconds; medians of turns.

    "full" and "kept": the stock model's over all pairs and over the kept ones; "ours": Foveate's
    over the kept ones.
    """
    found = []
    for (name, (h, g, d)), dtype in product(SHAPES.items(), (torch.float32, torch.bfloat16)):
        q = torch.randn(1, h * g, 1, d, dtype=dtype)
        k, v = torch.randn(2, 1, h, tokens, d, dtype=dtype)
        few = k[:, :, : tokens // 5].contiguous(), v[:, :, : tokens // 5].contiguous()
        ways: dict[str, Callable[[], object]] = {
            "full": lambda q=q, k=k, v=v: sdpa(q, k, v, enable_gqa=True),  # type: ignore[misc]
            "kept": lambda q=q, few=few: sdpa(q, *few, enable_gqa=True),  # type: ignore[misc]
            "ours": lambda q=q, few=few, d=d: attend_folded(q, few[0], few[1], d**-0.5),  # type: ignore[misc]
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(8 * rounds):
            for way, work in ways.items():
                times[way].append(1000 * seconds(work, q.device))
        ms = {way: median(durations) for way, durations in times.items()}
        found.append({"shape": name, "dtype": str(dtype).removeprefix("torch."), **ms})
    return found


def half(loaded: Loaded, tokens: int, rounds: int, count: int) -> dict[str, Any]:
    """Measure decoding steps in bfloat16, of this model and of two layers of a larger one.

    Prompts are prefilled in float32, which takes a sixth of the time if the processor lacks
    bfloat16.
    """
    subjects = (
        replace(of_model(loaded, tokens), model=copy.deepcopy(loaded.model)),
        of_dims("qwen2-vl-7b", tokens, layers=2),
    )
    found = {}
    for subject in subjects:
        with torch.no_grad():
            subject.model.float()  # type: ignore[no-untyped-call]
            caches = [prefill(subject, policy_of(spec)) for spec in ("full", "snapkv", "mixkv")]
            subject.model.bfloat16()
            for layer in (layer for filled in caches for layer in foveate_layers(filled.cache)):
                pairs = layer.pairs
                if isinstance(pairs, DensePairs):  # always true here; for the type checker
                    pairs._k, pairs._v = pairs._k.bfloat16(), pairs._v.bfloat16()
            timed = decoding(subject, caches, rounds, count, lambda: None)
        found[subject.name] = {spec: of._asdict() for spec, of in timed.items()}
    return found


def memory(tokens: int) -> dict[str, Any]:
    """Return bytes at the peak of prefills above the model, each in its own process."""
    capped = (
        f"snapkv:budget={tokens // 5},when=over_budget(every={CHUNK},reading=true,answering=false)"
    )
    return {
        **{how: peak(how, tokens) for how in ("no_cache", "stock")},
        "policies": {spec: peak("policy", tokens, spec) for spec in ("full", *SPECS, AT_END)},
        "chunks": {
            spec: peak("chunks", tokens, spec) for spec in ("full", "snapkv:budget=20%", capped)
        },
    }


def peak(how: str, tokens: int, spec: str = "") -> int:
    """Return the peak of one prefill, in its own process."""
    return apart(_peak, how, tokens, spec)


def _peak(how: str, tokens: int, spec: str) -> int:
    with freed_at_once(), torch.no_grad():
        loaded = load("smollm2")
        subject = of_model(loaded, tokens)
        stock(of_model(loaded, 64))  # memory-mapped weights become resident
        works: dict[str, Callable[[], object]] = {
            "no_cache": lambda: subject.model(
                input_ids=subject.ids, use_cache=False, logits_to_keep=1
            ),
            "stock": lambda: stock(subject),
            "policy": lambda: prefill(subject, policy_of(spec)),
            "chunks": lambda: _read_in_chunks(subject, spec),
        }
        found = peak_of(works[how], subject.device)
    if found is None:
        raise SystemExit("peaks of memory can only be measured on Linux.")
    return found


def _read_in_chunks(subject: Subject, spec: str) -> None:
    with compress(subject.model, spec):
        subject.model.generate(  # type: ignore[operator]
            subject.ids, max_new_tokens=1, prefill_chunk_size=CHUNK, do_sample=False
        )


def measured(part: str, loaded: Loaded, a: argparse.Namespace, tick: Tick) -> Any:
    """Measure one part of the results."""
    settings: dict[str, Any] = {
        "steps": a.steps,
        "tick": tick,
        "memory": 0,  # no batch: throughput is not reported here
    }
    subject = of_model(loaded, a.tokens)
    if part == "prefill":
        chosen = [policy_of(spec) for spec in SPECS]
        rows = bench(subject, chosen, rounds=a.rounds, timed=prefills, **settings)
        return [asdict(row) for row in rows]
    if part == "rules":
        chosen = [policy_of(spec) for spec in RULES]
        rows = bench(subject, chosen, rounds=1, **settings)
        return [asdict(row) | {"tokens": a.tokens} for row in rows]
    if part == "attention":
        return attention(a.tokens, a.rounds)
    if part == "half":
        return half(loaded, a.tokens, min(a.rounds, PEERS_ROUNDS), a.steps)
    if part == "decoding":
        short, rounds = of_model(loaded, a.tokens // 5), a.rounds + 2
        return {
            "same_bytes": same_bytes(subject, short, rounds, a.steps),
            "kept_or_masked_s": masked(subject, rounds, a.steps),
        }
    if part == "memory":
        return memory(a.tokens)
    if part == "again":
        chosen = [policy_of(spec) for spec in WINDOWS]
        with torch.no_grad():
            runs = prefills(subject, chosen, a.rounds, tick)
        return {spec: of._asdict() for spec, of in zip(WINDOWS, runs.values(), strict=True)}
    return kvpress(
        subject,
        [policy_of(spec) for spec in PEERS],
        a.kvpress,
        rounds=min(a.rounds, PEERS_ROUNDS),
        steps=a.steps,
    )


def earlier(settings: dict[str, Any]) -> dict[str, Any]:
    """Return earlier results with the same settings.

    Parts measured on another machine, or with another transformers, are marked on the page.
    """
    found = output.earlier("cpu")
    differ = {
        name: (found.get(name), value)
        for name, value in settings.items()
        if found.get(name) != value and name not in ("machine", "transformers")
    }
    if differ:
        raise SystemExit(f"cpu.json was measured differently (there, here): {differ}. Measure all.")
    return found


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvpress", help="python of kvpress's environment")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=[part for part in PARTS if part != ON_ITS_OWN],
        metavar="PART",
        help=f"parts to measure again: {', '.join(PARTS)}; {ON_ITS_OWN} only if named",
    )
    a = parser.parse_args()
    if a.kvpress is None and "kvpress" in a.only:
        parser.error("--kvpress is needed; bash benchmarks/speed/kvpress_env.sh DIR makes one.")
    loaded = load("smollm2")
    settings = {
        "tokens": a.tokens,
        "rounds": a.rounds,
        "kvpress_rounds": min(a.rounds, PEERS_ROUNDS),
        "steps": a.steps,
        **machine(),
    }
    is_complete = set(a.only) >= {*PARTS} - {ON_ITS_OWN}
    found = settings if is_complete else earlier(settings)
    with Progress() as bars:
        for part in a.only:
            task = bars.add_task(part, total=TICKS[part](a.rounds))
            found[part] = measured(part, loaded, a, lambda t=task: bars.advance(t))  # type: ignore[misc]
            found.setdefault("measured_with", {})[part] = [
                settings["transformers"],
                settings["machine"],
            ]
            write_data("cpu", found)  # a long run that fails later has measured this
            bars.update(task, total=1, completed=1)
    if missing := [part for part in PARTS if part not in (*found, ON_ITS_OWN)]:
        raise SystemExit(f"the page needs the other parts, too: --only {' '.join(missing)}.")
    write("cpu", page(found), found)


if __name__ == "__main__":
    main()
