"""What methods cost and save on a CPU, beside the stock model and kvpress.

    bash benchmarks/kvpress_env.sh .venv-kvpress
    python benchmarks/cpu.py --kvpress .venv-kvpress/bin/python [--tokens 4096] [--rounds 8]

SmolLM2-135M-Instruct, float32, on Linux with glibc; needs greenlet. Writes
benchmarks/results/cpu.md and .json.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from statistics import mean, median
from typing import Any

import torch
import transformers
from lockstep import keep_memory, prefills
from rich.progress import Progress
from written import write

import foveate
from foveate.backends.hf import compress
from foveate.bench import Row, Subject, bench, of_model, processor
from foveate.bench.measure import ticks
from foveate.bench.memory import peak_of
from foveate.bench.peer import kvpress
from foveate.bench.timing import Filled, prefill, seconds, steps, stock
from foveate.eval.model import load

KEPT, CHUNK = "20%", 256
PEERS_ROUNDS = 3  # at most; what is compared with them differs by far more than rounds do
GROUPS = {  # by what they read; the most that a group is meant to add to the prefill
    "the last 32 queries": (0.02, ("snapkv", "mixkv", "adakv", "david:recent=32")),
    "the last queries, half of the budget": (None, ("david",)),
    "norms": (0.02, ("knorm",)),
    "column sums": (0.15, ("h2o", "lookm:merging=none", "prefixkv", "csp")),
    "column sums, merging": (None, ("lookm", "mixkv+prefixkv+lookm.merge")),
}
PEERS = ("full", "snapkv", "adakv", "h2o")
AT_END = "snapkv+prefixkv.budget"
RULES = ("prefixkv", "prefixkv:when=fixed_slot(every=16)", "h2o:when=over_budget",
         "h2o:when=over_budget(every=16)", "csp:decode_n=1.0")  # fmt: skip


def policy_of(spec: str) -> foveate.Policy:
    """The policy at the benchmark's budget."""
    return foveate.policy(spec) if spec == "full" else foveate.policy(spec, budget=KEPT)


def same_bytes(subject: Subject, short: Subject, rounds: int, count: int) -> dict[str, float]:
    """Time per token of what is kept of a long prompt, over that of a preallocated full cache of
    as many pairs; medians.
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
    """Seconds per token over AdaKV's kept pairs, and over all pairs with a mask on the others, in
    turns; medians.
    """
    with torch.no_grad():
        kept, whole = prefill(subject, policy_of("adakv")), prefill(subject, foveate.full())
        share = kept.stats.bytes_after / kept.stats.bytes_before
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(steps(subject, kept, count))
            theirs.append(masked_steps(subject, whole, share, count))
    return median(ours), median(theirs)


def masked_steps(subject: Subject, whole: Filled, share: float, count: int) -> float:
    """Mean seconds of decoding steps over a preallocated full cache, of whose pairs every head is
    allowed that share.
    """
    token, heads = subject.ids[:, -1:], subject.model.config.num_attention_heads
    seen = torch.rand(1, heads, 1, subject.ids.shape[1]) < share
    times = []
    with compress(subject.model, whole.policy) as session:
        cache = session.fork(whole.cache)
        for _ in range(count + 1):
            seen = torch.cat([seen, torch.ones(1, heads, 1, 1, dtype=torch.bool)], dim=-1)
            times.append(seconds(
                lambda mask=seen: subject.model(  # type: ignore[misc]
                    input_ids=token, past_key_values=cache, attention_mask=mask
                ),
                subject.device,
            ))  # fmt: skip
    return mean(times[1:])


def peak(tokens: int, spec: str | None, *, chunks: bool = False) -> int | None:
    """Bytes at the peak of a prefill above the model, without a policy if None; in a process of its
    own, since memory that earlier work freed is used again and would not be seen.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_peak, tokens, spec, chunks).result()


def layer_by_layer(tokens: int, processes: int = 5) -> list[int | None]:
    """Peaks of a prefill that compresses each layer as soon as it has been read, and of one whose
    layers wait for each other; medians, since the allocator's whims move them by a quarter.
    """
    found = [[peak(tokens, spec) for _ in range(processes)] for spec in ("snapkv", AT_END)]
    return [None if None in each else int(median(each)) for each in found]  # type: ignore[type-var]


def _peak(tokens: int, spec: str | None, chunks: bool) -> int | None:
    loaded = load("smollm2")
    subject = of_model(loaded, tokens)
    with torch.no_grad():
        stock(of_model(loaded, 64))  # weights that are mapped become resident
        if spec is None:
            return peak_of(lambda: stock(subject), subject.device)
        if chunks:
            return peak_of(lambda: _read_in_chunks(subject, spec), subject.device)
        return peak_of(lambda: prefill(subject, policy_of(spec)), subject.device)


def in_chunks(tokens: int) -> list[str]:
    """Peaks of a prompt read in chunks, above the model: held whole, and under a cap."""
    capped = (
        f"snapkv:budget={tokens // 5},when=over_budget(every={CHUNK},reading=true,answering=false)"
    )
    lines = ["| policy | peak memory, MB |", "|---|---|"]
    for spec in ("full", "snapkv:budget=20%", capped):
        lines.append(f"| `{spec}` | {_mb(peak(tokens, spec, chunks=True))} |")
    return lines


def _read_in_chunks(subject: Subject, spec: str) -> None:
    with compress(subject.model, spec):
        subject.model.generate(  # type: ignore[operator]
            subject.ids, max_new_tokens=1, prefill_chunk_size=CHUNK, do_sample=False
        )


def overhead(rows: list[Row]) -> list[str]:
    """What every policy adds to the prefill, and its peak."""
    by = {row.method: row for row in rows}
    lines = ["| reads | policy | prefill | meant | stages alone | peak memory, MB | KV, % of full "
             "| decoding |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for group, (target, specs) in GROUPS.items():
        meant = f"<= {target:+.0%}" if target else ""
        for spec in specs:
            row = by[spec]
            lines.append(
                f"| {group} | `{spec}` | {row.prefill_ratio - 1:+.1%} | {meant} | "
                f"{row.compress_s / row.prefill_s * row.prefill_ratio:.1%} | {_mb(row.peak_bytes)} "
                f"| {100 * row.kv_share:.1f} | {row.decode_ratio:.2f} |"
            )
    return lines


def beside(rows: list[Row], peers: list[dict[str, Any]], stock: int | None) -> list[str]:
    """Ours and theirs, each against its own stock prefill and cache."""
    by, full = {row.method: row for row in rows}, rows[0].kv_bytes
    lines = ["| method | library | prefill | peak memory, MB | KV, % of full | decoding, ms/token "
             "| to the full cache |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for peer in peers:
        mine = by[peer["method"]]
        ours = (mine.prefill_ratio, mine.peak_bytes, mine.kv_bytes, mine.decode_ms_per_token,
                mine.decode_ratio)  # fmt: skip
        theirs = tuple(peer[key] for key in ("prefill_ratio", "peak_bytes", "kv_bytes",
                                             "decode_ms_per_token", "decode_ratio"))  # fmt: skip
        for library, (ratio, peak, held, ms, to_full) in (("foveate", ours), ("kvpress", theirs)):
            lines.append(f"| {peer['method']} | {library} | {ratio:.2f} | {_mb(peak)} | "
                         f"{100 * held / full:.1f} | {ms:.1f} | {to_full:.2f} |")  # fmt: skip
    return [*lines, "", f"The stock prefill alone peaks at {_mb(stock)} MB."]


def rules(rows: list[Row]) -> list[str]:
    """What rules that go on while decoding cost there."""
    lines = ["| policy | time per token, to the full cache |", "|---|---|"]
    return [*lines, *(f"| `{row.method}` | {row.decode_ratio:.2f} |" for row in rows[1:])]


def _mb(count: int | None) -> str:
    return "?" if count is None else f"{count / 1e6:.0f}"


def ratio(part: int | None, whole: int | None) -> str:
    """The first over the second, if both are known."""
    return f"{part / whole:.2f}" if part and whole else "?"


def main() -> None:
    """Measures, writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvpress", required=True, help="python of kvpress's environment")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=32)
    a = parser.parse_args()
    keep_memory()
    loaded = load("smollm2")
    subject = of_model(loaded, a.tokens)
    short, early = of_model(loaded, a.tokens // 5), of_model(loaded, 1024)
    specs = [spec for _, group in GROUPS.values() for spec in group]
    with Progress() as bars:
        total = ticks(len(specs) + 1, a.rounds) + ticks(len(RULES) + 1, 1)
        task = bars.add_task("measuring", total=total)
        settings: dict[str, Any] = {
            "steps": a.steps, "tick": lambda: bars.advance(task),
            "memory": 0,  # no batch: throughput is not told here
        }  # fmt: skip
        rows = bench(subject, [policy_of(spec) for spec in specs], rounds=a.rounds,
                     timed=prefills, **settings)  # fmt: skip
        rows = [replace(row, peak_bytes=peak(a.tokens, row.method)) for row in rows]
        ruled = bench(early, [policy_of(spec) for spec in RULES], rounds=1, **settings)
    apart = same_bytes(subject, short, a.rounds + 2, a.steps)
    ours, under_mask = masked(subject, a.rounds + 2, a.steps)
    alone, (by_layer, at_end) = peak(a.tokens, None), layer_by_layer(a.tokens)
    chunks = in_chunks(a.tokens)
    peers = kvpress(subject, [policy_of(spec) for spec in PEERS], a.kvpress,
                    rounds=min(a.rounds, PEERS_ROUNDS), steps=a.steps)  # fmt: skip
    machine = processor(subject.device)
    lines = [
        "# On a CPU", "",
        f"SmolLM2-135M-Instruct, float32, {torch.get_num_threads()} threads of {machine}"
        f", torch {torch.__version__}, transformers {transformers.__version__}; {a.tokens:,} tokens"
        f" of prose, {KEPT} kept; medians of {a.rounds} rounds.", "",
        "## Prefill", "",
        "What a policy adds to the stock prefill, the two run in lockstep, half a layer at a time; "
        "then by its stages' own clock. For both alike, glibc gives no memory back on the way. "
        "Peak memory is that of a prefill in a process of its own, above the model. Decoding is "
        "the time per token over that of a preallocated full cache.", "",
        *overhead(rows), "",
        "How far whole prefills can be trusted: the full cache, for which next to nothing is done, "
        f"measured {rows[0].prefill_ratio - 1:+.1%}.", "",
        "## Beside kvpress", "",
        "Each side against its own stock prefill (SDPA) and full cache; kvpress's prefills follow "
        "each other, in a process that glibc runs as it does by default, and its full cache is the "
        "stock one; ours are in lockstep, and ours is preallocated. KV counts kvpress's "
        "lists of hidden pairs. Its medians are "
        f"those of {min(a.rounds, PEERS_ROUNDS)} rounds.", "",
        *beside(rows, peers, alone), "",
        "## As many pairs, kept or read", "",
        "Time per token with what is kept, over a preallocated full cache that holds as many pairs "
        f"because the prompt was short: snapkv (dense) {apart['snapkv']:.2f}, adakv (ragged) "
        f"{apart['adakv']:.2f}.", "",
        "## Kept, or masked", "",
        f"AdaKV's kept pairs take {1000 * ours:.1f} ms a token; the preallocated full cache with a "
        f"mask over the others takes {1000 * under_mask:.1f}: {ours / under_mask:.2f} of it is "
        "left.", "",
        "## Layer by layer, or at the end", "",
        "snapkv compresses each layer as soon as it has been read; with a budget that is shared "
        f"over the layers ({AT_END}) all of them at the end. The prefills peak at {_mb(by_layer)} "
        f"and {_mb(at_end)} MB above the model (medians of 5 processes): "
        f"{ratio(by_layer, at_end)}.", "",
        "## In chunks", "",
        f"The same prompt in chunks of {CHUNK} tokens: kept whole, compressed when it has been "
        "read, and compressed on the way, so that no layer ever holds more than the budget and two "
        "chunks.", "", *chunks, "",
        "## Rules that go on while decoding", "", "After 1,024 tokens.", "", *rules(ruled), "",
    ]  # fmt: skip
    write("cpu", "\n".join(lines), {
        "rows": [asdict(row) for row in rows], "kvpress": peers, "same_bytes": apart,
        "stock_peak_bytes": alone, "peaks": [by_layer, at_end],
        "kept_or_masked_s": [ours, under_mask], "decode_rules": [asdict(row) for row in ruled],
        "tokens": a.tokens, "rounds": a.rounds, "threads": torch.get_num_threads(),
        "machine": machine, "torch": torch.__version__, "transformers": transformers.__version__,
    })  # fmt: skip


if __name__ == "__main__":
    main()
