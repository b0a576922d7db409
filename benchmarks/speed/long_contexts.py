"""Long contexts on a CPU: growth with the prompt's length, and memory.

    python -m benchmarks.speed.long_contexts [--only alone chunks prefill half] [--anew]

Every figure is written as soon as it is measured, and a run continues the last one on the same
machine with the same versions. Needs Linux with glibc. Writes
benchmarks/results/long_contexts.md and .json.

* alone: the policies' own work on one layer of 7B heads, 16k and 128k tokens, one thread, in CPU
  time, which other load does not change;
* chunks: peaks of prompts in chunks above the same chunks without a cache, each in its own process;

* prefill: overhead of window methods at 4k to 16k tokens, and of column sums in bfloat16 (half).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers

import foveate
from benchmarks import chunks, output
from benchmarks.layer_work import Heads, anew, drawn, work
from benchmarks.output import CPU, machine, write
from benchmarks.processes import apart
from benchmarks.speed.lockstep import keep_memory
from benchmarks.speed.long_contexts_page import page
from foveate_lab.bench import Subject
from foveate_lab.bench.dims import Dims, of_shape, shape
from foveate_lab.bench.memory import freed_at_once, peak_of
from foveate_lab.bench.subject import with_drawn_ids
from foveate_lab.bench.timing import prefills

HEADS, ENDS = Heads(28, 4, 128), (16384, 131072)
ALONE = (
    "snapkv:budget=20%", "mixkv:budget=20%", "adakv:budget=20%", "pyramidkv:budget=20%",
    "tova:budget=20%", "chunkkv:budget=20%", "finch:budget=20%",
    "david:budget=20%", "csp:budget=20%", "h2o:budget=20%", "prefixkv:budget=20%",
    "elastic_cache:budget=20%", "cam:budget=20%", "lookm:budget=2048",
    "mixkv+prefixkv+lookm.merge:budget=2048", "knorm:budget=20%", "keydiff:budget=20%",
    "expected_attention:budget=20%", "lagkv:budget=20%", "cur:budget=20%", "leverage:budget=20%",
    "criticalkv:budget=20%", "think:budget=20%", "simlayerkv:budget=20%", "recommended:budget=20%",
    "compactor:budget=20%", "non_causal_attention:budget=20%", "streaming_llm:budget=20%",
)  # fmt: skip
# Two layers of a 7B model's attention. The MLP, equal on both sides, would hide a policy's share
# and is cut to a sixteenth.
SHAPES: dict[str, Dims] = {
    "qwen2-vl-7b": replace(shape("qwen2-vl-7b", 2), intermediate=1184, vocabulary=1024),
    "smollm2-135m": Dims(transformers.LlamaConfig, 3, 576, 9, 3, 1536, 1024),
}
CHUNK, CAP = 1024, 2048
CAPPED = f"snapkv:budget={CAP},when=over_budget(every={CHUNK},reading=true,answering=false)"
READ = ("none", CAPPED, "snapkv:budget=20%")
LENGTHS, PREFILLS = (4096, 8192, 16384, 32768), (4096, 16384)
# Longer prompts run only under the capped policy: full attention takes minutes.
LONGEST = {"qwen2-vl-7b": 8192, "smollm2-135m": 16384}
WINDOWS = ("snapkv:budget=20%", "mixkv:budget=20%")
SUMS = ("h2o:budget=20%", "prefixkv:budget=20%", "lookm:budget=20%,merging=none", "csp:budget=20%")
PARTS = ("alone", "chunks", "prefill", "half")

Measured = Callable[[], Any]


def alone(spec: str) -> dict[str, float]:
    """Return milliseconds per layer at both lengths: the minimum of a few, after a warm-up."""
    torch.set_num_threads(1)
    keep_memory()  # otherwise large tensors, unlike small ones, need new pages every time
    policy, found = foveate.policy(spec), []
    with torch.no_grad():
        for tokens in ENDS:
            layer, times = drawn(policy, tokens, HEADS, CPU), []
            for _ in range(4):
                fresh = anew(policy, layer)
                start = time.process_time()
                work(policy, fresh)
                times.append(1e3 * (time.process_time() - start))
            found.append(min(times[1:]))
            del layer, fresh
    return {"first_ms": found[0], "last_ms": found[1], "grows": found[1] / found[0]}


def subject(name: str, tokens: int, dtype: torch.dtype = torch.float32) -> Subject:
    """Return a model of a shape, with random tokens."""
    return with_drawn_ids(name, of_shape(SHAPES[name], CPU, dtype), tokens)


def peak(name: str, tokens: int, spec: str) -> dict[str, float]:
    """Return the peak of a prompt in chunks above the model, and the kept bytes."""
    with freed_at_once(), torch.no_grad():
        prompt, kept = subject(name, tokens), [0]
        chunks.without_cache(replace(prompt, ids=prompt.ids[:, :CHUNK]), CHUNK)

        def read() -> None:
            if spec == "none":
                chunks.without_cache(prompt, CHUNK)
            else:
                stats = chunks.read(prompt, foveate.policy(spec), CHUNK).stats
                kept[:] = [stats.bytes_after]

        found = peak_of(read, CPU)
        return {"peak": found or 0, "kept": kept[0]}


def pair_bytes(name: str, tokens: int) -> int:
    """Return the bytes of one layer's full pairs in float32."""
    dims = SHAPES[name]
    return 2 * 4 * tokens * dims.kv_heads * (dims.hidden // dims.heads)


def ratios(specs: tuple[str, ...], tokens: int, dtype: str, rounds: int) -> dict[str, Any]:
    """Time prefills under policies, each between two stock ones, and their stages' share."""
    keep_memory()
    with torch.no_grad():
        prompt = subject("smollm2-135m", tokens, getattr(torch, dtype))
        found = prefills(prompt, [foveate.policy(spec) for spec in specs], rounds, lambda: None)
    return {
        spec: {"ratio": of.ratio, "stages": of.stages / of.alone, "stock_s": of.alone}
        for spec, of in zip(specs, found.values(), strict=True)
    }


def jobs(only: list[str]) -> Iterator[tuple[str, Measured]]:
    """Yield all measurements by name."""
    if "alone" in only:
        for spec in ALONE:
            yield f"alone/{spec}", partial(apart, alone, spec)
    if "chunks" in only:
        for name in SHAPES:
            for tokens in LENGTHS:
                for spec in READ:
                    if tokens <= LONGEST[name] or spec in READ[:2]:
                        yield (
                            f"chunks/{name}/{tokens}/{spec}",
                            partial(apart, peak, name, tokens, spec),
                        )
    if "prefill" in only:
        for tokens in PREFILLS:
            rounds = 3 if tokens < 8192 else 1
            yield f"prefill/{tokens}", partial(apart, ratios, WINDOWS, tokens, "float32", rounds)
    if "half" in only:
        yield "half/4096", partial(apart, ratios, SUMS, 4096, "bfloat16", 2)
        yield "half/4096, float32", partial(apart, ratios, SUMS, 4096, "float32", 2)


def earlier() -> dict[str, Any]:
    """Return the figures measured on this machine."""
    found = output.earlier("long_contexts")
    if found and not machine().items() <= found.items():
        raise SystemExit("long_contexts.json was measured on another machine. Move it away.")
    figures: dict[str, Any] = found.get("figures", {})
    return figures


def keep(new: dict[str, Any]) -> None:
    """Write the results, after reading the file again: another part may run at the same time."""
    figures = earlier() | new
    order = [name for name, _ in jobs(list(PARTS)) if name in figures]
    found = {**machine(), "figures": {name: figures[name] for name in order}}
    write("long_contexts", page(found, ENDS, CHUNK, CAP, pair_bytes), found)


def main() -> None:
    """Measure what is missing, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--anew", action="store_true", help="measure these parts again")
    a = parser.parse_args()
    done = earlier()
    for name, measured in jobs(a.only):
        if name not in done or a.anew:
            figure = measured()
            print(name, figure, flush=True)
            keep({name: figure})
    keep({})


if __name__ == "__main__":
    main()
