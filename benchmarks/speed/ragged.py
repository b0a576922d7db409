r"""Heads that keep different numbers of pairs: memory, and time per token.

    bash benchmarks/speed/kvpress_env.sh .venv-kvpress
    python -m benchmarks.speed.ragged --kvpress .venv-kvpress/bin/python [--tokens 8128] \
        [--keep 0.2 0.05]

AdaKV over SnapKV's scores, beside SnapKV alone and the preallocated full cache, in Foveate and in
kvpress, each in its own process; then Foveate's in one process, in turns. Writes
benchmarks/results/ragged.md and .json.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

import foveate
from benchmarks.output import write
from foveate.loading.model import load
from foveate_demo import smollm2
from foveate_lab.bench import of_model
from foveate_lab.bench.peer import PRESSES
from foveate_lab.bench.timing import decoding, prefill

COLUMNS = [
    "kept",
    "method",
    "library",
    "cache, MiB",
    "of the budget",
    "resident, MiB",
    "decoding, ms/token",
    "NLL of the next 64",
]
SIDE = Path(__file__).with_name("ragged_side.py")
FOLLOWING = 64
SPECS = {  # with the window and the kernel of kvpress's presses
    "full": "full",
    "snapkv": "snapkv:window=64,kernel=5",
    "adakv": "adakv:window=64,kernel=5,pool=avg,floor=0.2",
}
MEDIANS = ("rss_held_bytes", "prefill_s", "decode_ms_per_token", "nll_next_64")


def text(tokenizer: PreTrainedTokenizerBase, tokens: int) -> dict[str, list[int]]:
    """Return English prose that every Python contains: its own reference manual."""
    prose = "\n\n".join(pydoc_data.topics.topics[k] for k in ("types", "typesseq", "exceptions"))
    prose += "\n\n".join(v for _, v in sorted(pydoc_data.topics.topics.items()))
    ids = tokenizer(prose)["input_ids"]
    return {"prompt": ids[:tokens], "next": ids[tokens : tokens + FOLLOWING]}


def measure(python: str, library: str, method: str, keep: float, ids: Path, repeats: int) -> Any:
    """Measure one side in its own process."""
    what = SPECS[method] if library == "foveate" else PRESSES[method] or "full"
    command = [
        python,
        str(SIDE),
        "--library",
        library,
        "--what",
        what,
        "--keep",
        str(keep),
        "--model",
        str(smollm2.cached()),
        "--text",
        str(ids),
        "--repeats",
        str(repeats),
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def median(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the numbers of several processes."""
    return {
        **results[-1],
        **{name: statistics.median(r[name] for r in results) for name in MEDIANS},
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    full = next(r["cache_bytes"] for r in rows if r["method"] == "full")
    for row in rows:
        nominal = full * row["keep"]
        lines.append(
            f"| {row['keep']:.0%} | {row['method']} | {row['library']} | "
            f"{row['cache_bytes'] / 2**20:.1f} | {row['cache_bytes'] / nominal:.3f} | "
            f"{row['rss_held_bytes'] / 2**20:.1f} | {row['decode_ms_per_token']:.1f} | "
            f"{row['nll_next_64']:.3f} |"
        )
    return "\n".join(lines)


def in_turns(tokens: int, keeps: list[float], rounds: int, count: int = 8) -> dict[float, float]:
    """Return AdaKV's time per token over SnapKV's, by share kept; medians."""
    subject, found = of_model(load("smollm2"), tokens), {}
    with torch.no_grad():
        for keep in keeps:
            both = [
                prefill(subject, foveate.policy(SPECS[name], budget=keep))
                for name in ("snapkv", "adakv")
            ]
            times = decoding(subject, both, rounds, count, lambda: None)
            found[keep] = times[both[1].policy.spec].ratio
    return found


def head(rows: list[dict[str, Any]]) -> str:
    """Return the text above the table."""
    return (
        f"# Heads of different lengths\n\nSmolLM2-135M-Instruct, float32, CPU, "
        f"{rows[0]['threads']} threads, {rows[0]['prompt_tokens']:,} tokens. `adakv` shares the "
        "budget over the heads of a layer (floor 0.2). The cache is what its tensors take, "
        "kvpress's lists of hidden pairs included; resident is by how much the process grew. "
        f"Medians of {rows[0]['processes']} process(es) of each, in turns.\n\n"
    )


def main() -> None:
    """Measure everything in turns, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvpress", required=True, help="python of kvpress's environment")
    parser.add_argument("--tokens", type=int, default=8128)
    parser.add_argument("--keep", type=float, nargs="+", default=[0.2, 0.05])
    parser.add_argument("--repeats", type=int, default=1, help="runs in each process")
    parser.add_argument("--rounds", type=int, default=1, help="processes of each side")
    parser.add_argument("--turns", type=int, default=31, help="turns of both in one process")
    options = parser.parse_args()
    _, tokenizer = smollm2.load()
    cases = [("full", 1.0), *((m, keep) for keep in options.keep for m in ("snapkv", "adakv"))]
    found: dict[Any, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        ids = Path(folder) / "ids.json"
        ids.write_text(json.dumps(text(tokenizer, options.tokens)))
        for turn in range(options.rounds):
            for library in ("foveate", "kvpress")[:: -1 if turn % 2 else 1]:
                python = sys.executable if library == "foveate" else options.kvpress
                for method, keep in cases:
                    result = measure(python, library, method, keep, ids, options.repeats)
                    found.setdefault((keep, method, library), []).append(result)
                    print(library, method, keep, result["decode_ms_per_token"], file=sys.stderr)
    rows = [
        {**median(several), "method": method, "keep": keep, "processes": len(several)}
        for (keep, method, _), several in found.items()
    ]
    rows.sort(key=lambda row: (-row["keep"], row["method"] == "adakv", row["library"]))
    ratios = in_turns(options.tokens, options.keep, options.turns)
    slower = " and ".join(f"{ratio:.2f} at {keep:.0%}" for keep, ratio in ratios.items())
    lines = [
        table(rows),
        "",
        "Processes run minutes apart, and this machine's speed changes by "
        "more than what `adakv` adds: their times show sizes, not ratios. In one process, 8 "
        f"tokens of each in turns, medians of {options.turns} turns, a token of `adakv` takes "
        f"as long as one of `snapkv` times {slower}.",
    ]
    write("ragged", head(rows) + "\n".join(lines), {"processes": rows, "in_turns": ratios})
    print("\n".join(lines))


if __name__ == "__main__":
    main()
