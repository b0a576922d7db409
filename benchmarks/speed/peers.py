"""Prefill overhead of newer methods, and decoding speed, beside kvpress.

    bash benchmarks/speed/kvpress_env.sh .venv-kvpress
    python -m benchmarks.speed.peers --kvpress .venv-kvpress/bin/python [--tokens 2048] [--rounds 4]

SmolLM2-135M-Instruct, float32, 20 % kept, on Linux with glibc; needs greenlet. Missing profiles are
calibrated in minutes. Writes benchmarks/results/peers.md and .json, part by part.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.progress import track
from transformers import DynamicCache

import foveate
from benchmarks.output import earlier, machine, write, write_data
from benchmarks.speed.cpu import KEPT, peak, policy_of
from benchmarks.speed.lockstep import WARM_UP, prefills
from foveate.cli.prompt import passages
from foveate.hf.measuring.calibrate import calibrate
from foveate.hf.model.internals import CACHE
from foveate.loading.model import Loaded, load
from foveate.prompts.prompt import read
from foveate_lab.bench import Subject, bench, of_model
from foveate_lab.bench.measure import ticks
from foveate_lab.bench.peer import PRESSES, kvpress
from foveate_lab.bench.timing import of_steps, prefill, steps

MADE = Path("benchmarks/runs/profiles")
FILTERS = MADE / "q_filters_smollm2.safetensors"
STATISTICS = MADE / "expected_attention_smollm2.safetensors"
HEADS = MADE / "duo_attention_smollm2.json"
RECOMMENDED = "benchmarks/profiles/recommended_smollm2.safetensors"
SPECS = {  # by what they read
    "keys and values": (
        "keydiff", "lagkv", "leverage", "cur", f"q_filters:profile={FILTERS}",
        f"expected_attention:profile={STATISTICS}", f"duo_attention:profile={HEADS}",
        f"recommended:profile={RECOMMENDED}", "divprune",
    ),
    "the last queries": (
        "chunkkv", "criticalkv", "criticalkv+adakv", "finch", "simlayerkv", "think", "aircache",
        "bacon", "fastv", "pyramiddrop", "rkv",
    ),
    "all queries": ("non_causal_attention", "compactor", "cam"),
    "the prompt twice": ("kvzip",),
}  # fmt: skip
ALL = [spec for group in SPECS.values() for spec in group]
PARTS = ("decoding", "overheads")
LENGTHS = {4096: 5, 16384: 2}  # and turns, whose prefills take minutes
DECODED = ("full", "snapkv", "mixkv")
STEPS = 32


def make_missing(loaded: Loaded) -> None:
    """Calibrate missing profiles. Head scores are random, which does not change the time."""
    MADE.mkdir(parents=True, exist_ok=True)
    texts = [read(loaded, text, []).inputs for text in passages(2)]
    for path, method in ((FILTERS, "q_filters"), (STATISTICS, "expected_attention")):
        if not path.exists():
            calibrate(loaded.model, method, texts).save(path)
    if not HEADS.exists():
        config = loaded.model.config
        drawn = torch.rand(config.num_hidden_layers, config.num_key_value_heads).tolist()
        table = HEADS.with_suffix(".tsv")
        table.write_text("\n".join("\t".join(map(str, layer)) for layer in drawn))
        foveate.import_head_scores(loaded.model, "duo_attention", table).save(HEADS)


def decoded(loaded: Loaded, tokens: int, turns: int, python: str) -> dict[str, Any]:
    """Measure milliseconds per token, medians of turns.

    Foveate's caches, the stock cache with as many pairs in the same process, and kvpress's SnapKV
    in another process.
    """
    subject, short = of_model(loaded, tokens), of_model(loaded, tokens // 5)
    with torch.no_grad():
        caches = [prefill(subject, policy_of(spec)) for spec in DECODED]
        plain = DynamicCache(config=loaded.model.config)
        loaded.model(input_ids=short.ids, **{CACHE: plain}, logits_to_keep=1)
    names = [filled.policy.name for filled in caches]
    times: dict[str, list[float]] = {name: [] for name in (*names, "stock", "kvpress")}
    for _ in track(range(turns), f"decoding after {tokens:,} tokens"):
        for name, filled in zip(names, caches, strict=True):
            times[name].append(1000 * steps(subject, filled, STEPS))
        with torch.no_grad():
            times["stock"].append(1000 * of_steps(short, copy.deepcopy(plain), STEPS))
        [row] = kvpress(subject, [policy_of("snapkv")], python, rounds=1, steps=STEPS)
        times["kvpress"].append(row["decode_ms_per_token"])
    load = round(os.getloadavg()[0], 1)  # of the machine, in the last minute
    timed = {name: median(of) for name, of in times.items()}
    return {"tokens": tokens, "turns": turns, "load": load, **timed}


def overheads(subject: Subject, rounds: int) -> dict[str, Any]:
    """Measure a row for each method; peaks are from separate processes."""
    chosen = [policy_of(spec) for spec in ALL]
    ticker = iter(track(range(ticks(len(ALL) + 1, rounds) - len(ALL) - 1), "overheads"))
    rows = bench(
        subject, chosen, rounds=rounds, steps=STEPS, memory=0, timed=partial(prefills, warm_up=0),
        tick=lambda: next(ticker),
    )  # fmt: skip
    tokens = subject.ids.shape[1]
    peaks = [peak("policy", tokens, spec) for spec in ("full", *ALL)]
    ours = [
        {**asdict(row), "name": policy.name, "peak_bytes": peak_bytes}
        for row, policy, peak_bytes in zip(rows, [foveate.full(), *chosen], peaks, strict=True)
    ]
    return {"tokens": tokens, "rounds": rounds, "ours": ours}


def page(found: dict[str, Any]) -> str:
    """Return the page of all parts measured so far."""
    lines = [
        "# Newer methods, and decoding, beside kvpress", "",
        f"SmolLM2-135M-Instruct, float32, {found['threads']} threads of {found['machine']}, torch "
        f"{found['torch']}, transformers {found['transformers']}; {KEPT} kept. kvpress 0.5.5 runs "
        "in an environment of its own, with transformers 5.2.0; each method has each side's own "
        "defaults.",
    ]  # fmt: skip
    if "decoding" in found:
        lines += ["", "## Decoding", "", *_decoding(found["decoding"])]
    if "overheads" in found:
        lines += ["", "## Prefill, memory, decoding", "", *_overheads(found["overheads"])]
    return "\n".join(lines)


def _decoding(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        "Milliseconds a token, medians of turns: our caches, the stock cache filled with as many "
        "pairs as are kept, and a process of kvpress, whose decoding is the stock one over what it "
        "keeps; processes meet different moments of the machine. Load is what was running at the "
        "end: above 2 it was other work too, and a row is then no more than a hint.", "",
        "| prompt | turns | load | full cache | `snapkv` | `mixkv` | stock, as many pairs | "
        "kvpress's SnapKV | `snapkv` to stock | `snapkv` to kvpress | `mixkv` to kvpress |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['tokens']:,} | {row['turns']} | {row.get('load', '')} "
            f"| {row['full']:.1f} | {row['snapkv']:.1f} "
            f"| {row['mixkv']:.1f} | {row['stock']:.1f} | {row['kvpress']:.1f} "
            f"| {row['snapkv'] / row['stock']:.2f} | {row['snapkv'] / row['kvpress']:.2f} "
            f"| {row['mixkv'] / row['kvpress']:.2f} |"
            for row in rows
        ),
    ]  # fmt: skip


def _overheads(found: dict[str, Any]) -> list[str]:
    ours = {row["name"]: row for row in found["ours"]}
    theirs = {row["method"]: row for row in found["kvpress"]}
    full = ours["full"]["kv_bytes"]
    lines = [
        f"{found['tokens']:,} tokens of prose, of which the middle half counts as visual; medians "
        f"of {found['rounds']} rounds, of kvpress's 2. Prefills are to the stock one: ours in "
        "lockstep with it, half a layer at a time, kvpress's after it. Peaks are above the model; "
        "decoding is to the full cache, which is preallocated here and stock there. KV counts "
        "kvpress's lists of hidden pairs. Where kvpress would download data, it is drawn.", "",
        f"The full cache itself: prefill {ours['full']['prefill_ratio']:.2f} here and "
        f"{theirs['full']['prefill_ratio']:.2f} there, peak {_mb(ours['full'])} and "
        f"{_mb(theirs['full'])} MB.", "",
        "| reads | method | prefill | kvpress | peak, MB | kvpress | KV, % of full | kvpress "
        "| decoding | kvpress |", "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for group, specs in SPECS.items():
        for name in (policy_of(spec).name for spec in specs):
            both = ours[name], theirs.get(name)
            texts = [
                f"{row['prefill_ratio']:.2f} {_mb(row)} {100 * row['kv_bytes'] / full:.1f} "
                f"{row['decode_ratio']:.2f}".split() if row else [""] * 4
                for row in both
            ]  # fmt: skip
            cells = [cell for pair in zip(*texts, strict=True) for cell in pair]
            lines.append(f"| {group} | `{name}` | {' | '.join(cells)} |")
    absent = [name for name in ours if name not in PRESSES]
    names = ", ".join(f"`{name}`" for name in absent)
    return [*lines, "", f"Without a press that does the same: {names}."]


def _mb(row: dict[str, Any]) -> str:
    return f"{row['peak_bytes'] / 1e6:.0f}"


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvpress", required=True, help="python of kvpress's environment")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of the overheads' prompt")
    parser.add_argument("--rounds", type=int, default=WARM_UP, help="rounds of the overheads")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    a = parser.parse_args()
    loaded = load("smollm2")
    make_missing(loaded)
    found = earlier("peers") | machine()
    for part in a.only:
        if part == "decoding":
            found[part] = [decoded(loaded, n, turns, a.kvpress) for n, turns in LENGTHS.items()]
        else:
            subject = of_model(loaded, a.tokens)
            found[part] = overheads(subject, a.rounds)
            write_data("peers", found)  # a long run that fails later has measured this
            chosen = [foveate.full(), *map(policy_of, ALL)]
            found[part]["kvpress"] = kvpress(subject, chosen, a.kvpress, rounds=2, steps=STEPS)
        write_data("peers", found)
        write("peers", page(found), found)


if __name__ == "__main__":
    main()
