"""Foveate beside kvpress: the same methods, budget, model, text and measure, in one run.

    bash benchmarks/kvpress_env.sh .venv-kvpress
    python benchmarks/against_kvpress.py --kvpress .venv-kvpress/bin/python [--tokens 1024 4096]

kvpress needs transformers < 5.3, so each side runs in its own environment and process, in turns.
Writes benchmarks/results/against_kvpress.md and .json.
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

from transformers import PreTrainedTokenizerBase
from written import write

from foveate.demo import smollm2

HERE = Path(__file__).parent
METHODS = ("full", "snapkv", "knorm")
FOLLOWING = 64
LOWER_IS_BETTER = {
    "prefill_s": "prefill, s",
    "decode_ms_per_token": "decoding, ms/token",
    "cache_bytes": "cache, MB",
    "run_bytes": "peak memory of the run, MB",
}


def text(tokenizer: PreTrainedTokenizerBase, tokens: int) -> dict[str, list[int]]:
    """English prose that every Python has: its own reference manual."""
    prose = "\n\n".join(pydoc_data.topics.topics[k] for k in ("types", "typesseq", "exceptions"))
    prose += "\n\n".join(v for _, v in sorted(pydoc_data.topics.topics.items()))
    ids = tokenizer(prose)["input_ids"]
    return {"prompt": ids[:tokens], "next": ids[tokens : tokens + FOLLOWING]}


def measure(
    python: str, library: str, method: str, tokens: int, ids: Path, repeats: int,
    more: list[str] | None = None,
) -> Any:  # fmt: skip
    """One side, in a process of its own."""
    command = [python, str(HERE / "side.py"), "--library", library, "--method", method,
               "--model", str(smollm2.cached()), "--tokens", str(tokens), "--text", str(ids),
               "--repeats", str(repeats), *(more or [])]  # fmt: skip
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads(done.stdout.splitlines()[-1])
    result["run_bytes"] = result["peak_rss_bytes"] - result["rss_after_load_bytes"]
    return result


def median(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the numbers of several processes."""
    names = [*LOWER_IS_BETTER, "nll_next_64", "rss_held_bytes"]
    found = {name: statistics.median(r[name] for r in results) for name in names}
    return {**results[-1], **found}


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table: ours, theirs, and ours / theirs."""
    columns = [*LOWER_IS_BETTER.values(), "NLL of the next 64"]
    lines = ["| tokens | method | library | " + " | ".join(columns) + " |", "|" + "---|" * 8]
    for row in rows:
        for name in ("foveate", "kvpress"):
            side = row[name]
            cells = [f"{side['prefill_s']:.2f}", f"{side['decode_ms_per_token']:.1f}",
                     f"{side['cache_bytes'] / 1e6:.1f}", f"{side['run_bytes'] / 1e6:.0f}",
                     f"{side['nll_next_64']:.3f}"]  # fmt: skip
            lines.append(f"| {row['tokens']} | {row['method']} | {name} | {' | '.join(cells)} |")
        ratios = [f"{row['foveate'][k] / row['kvpress'][k]:.2f}" for k in LOWER_IS_BETTER]
        difference = row["foveate"]["nll_next_64"] - row["kvpress"]["nll_next_64"]
        lines.append(f"| | | **ratio** | {' | '.join(ratios)} | {difference:+.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Measures every method at every length, and writes the results."""
    parser = argparse.ArgumentParser(description="foveate beside kvpress")
    parser.add_argument("--kvpress", required=True, help="python of kvpress's environment")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--repeats", type=int, default=3, help="runs in each process")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    options = parser.parse_args()
    _, tokenizer = smollm2.load()
    rows = []
    for tokens in options.tokens:
        with tempfile.TemporaryDirectory() as folder:
            ids = Path(folder) / "ids.json"
            ids.write_text(json.dumps(text(tokenizer, tokens)))
            for method in METHODS:
                sides: dict[str, list[Any]] = {"foveate": [], "kvpress": []}
                for turn in range(options.rounds):
                    order = ["foveate", "kvpress"][:: -1 if turn % 2 else 1]
                    for library in order:
                        python = sys.executable if library == "foveate" else options.kvpress
                        sides[library].append(
                            measure(python, library, method, tokens, ids, options.repeats)
                        )
                measured = {name: median(results) for name, results in sides.items()}
                rows.append({"tokens": tokens, "method": method, **measured})
                print(table(rows[-1:]), file=sys.stderr)
    written(rows)


def written(rows: list[dict[str, Any]]) -> None:
    """The results as Markdown and as JSON."""
    ours, theirs = rows[0]["foveate"]["versions"], rows[0]["kvpress"]["versions"]
    head = (
        "# Foveate beside kvpress\n\n"
        "SmolLM2-135M-Instruct, float32, SDPA, CPU, "
        f"{rows[0]['foveate']['threads']} threads; 20 % kept by `snapkv` (window 64, kernel 5) and "
        "`knorm`, everything by `full` (here: preallocated; there: the stock cache). Medians over "
        "processes in turns, and over runs in each. Peak memory is counted from after the model "
        f"was loaded.\n\nfoveate: {ours}\n\nkvpress: {theirs}\n\n"
    )
    write("against_kvpress", head + table(rows), rows)


if __name__ == "__main__":
    main()
