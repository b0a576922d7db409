r"""Growth of the time per token with prompt and budget, beside the time of reading the bytes.

    python -m benchmarks.speed.scaling [--tokens 1024 4096 16384 65536 131072] [--at 32768] \
        [--only decoding]     keeps the prefills of the last run

SmolLM2-135M-Instruct's shape in float32. A decoding step reads all weights and all kept pairs once,
so bytes over the machine's measured reading speed bound it from below. The time of a stock step
over a single pair is separated from the time that pairs add. Times do not depend on the pairs'
values: caches are filled with random pairs, and the kept ones are random, too. Prefills use a few
layers, because all layers cost the same. Writes benchmarks/results/scaling.md, .json and .svg.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

import foveate
from benchmarks.output import CPU, RESULTS, earlier, machine, write
from foveate.cache.pairs import DensePairs, Pairs, RaggedPairs
from foveate.hf import compress
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.loading.model import Loaded, load
from foveate_lab.bench import of_model
from foveate_lab.bench.timing import Prefill, prefills, seconds
from foveate_lab.report.charts import axes, svg

BUDGETS = (1.0, 0.5, 0.2, 0.1, 0.05)
READ = ("snapkv", "h2o")  # the last queries alone, and all of them
READ_TOKENS, READ_LAYERS = (1024, 4096, 8192, 16384, 32768), 3
TOKEN = torch.tensor([[17]])
Reads = Mapping[int, Mapping[str, Prefill]]
"""Prefills by tokens and policy."""


@dataclass(frozen=True)
class Step:
    """Decoding step: its time, and the minimum time of reading its bytes."""

    tokens: int
    kept: float
    heads: str
    kv_bytes: int
    ms: float
    bound_ms: float
    pairs_ms: float
    """Minimum time of reading the pairs alone."""


def drawn(model: PreTrainedModel, tokens: int, kept: float, heads: str) -> Pairs:
    """Draw one layer's pairs: ``kept`` of ``tokens`` per head on average.

    Of "ragged" heads, one keeps half as many and one half as many again.
    """
    config = model.config.get_text_config()
    h, d = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    count = int(kept * tokens)
    if heads == "dense":
        columns = torch.arange(count).expand(1, h, count) if kept < 1 else None
        k, v = torch.randn(1, h, count, d), torch.randn(1, h, count, d)
        return DensePairs(k, v, columns, first=tokens if kept < 1 else 0)
    counts = torch.full((1, h), count)
    counts[0, 0], counts[0, -1] = count - count // 2, count + count // 2
    columns = torch.cat([torch.arange(int(n)) for n in counts.flatten()])
    k, v = torch.randn(len(columns), d), torch.randn(len(columns), d)
    return RaggedPairs(k, v, columns, counts, first=tokens)


def step(
    model: PreTrainedModel, tokens: int, kept: float, heads: str, count: int, speed: float
) -> Step:
    """Measure the median decoding step."""
    with compress(model, foveate.full()) as session, torch.no_grad():
        cache: DynamicCache = session.prefill(input_ids=TOKEN)
        for layer in foveate_layers(cache):
            layer.refill(drawn(model, tokens, kept, heads), tokens, tokens)
        kv_bytes = sum(layer.nbytes for layer in foveate_layers(cache))
        ms = median_ms(model, cache, count)
    read = kv_bytes + sum(p.nbytes for p in model.parameters())
    bounds = (1e3 * size / speed for size in (read, kv_bytes))
    return Step(tokens, kept, heads, kv_bytes, ms, *bounds)


def without_pairs(model: PreTrainedModel, count: int) -> float:
    """Return milliseconds of the stock model's step with almost nothing to attend to."""
    with torch.no_grad():
        return median_ms(model, DynamicCache(config=model.config), count)


def median_ms(model: PreTrainedModel, cache: DynamicCache, count: int) -> float:
    """Return the median milliseconds of ``count`` decoding steps, after one that allocates."""
    times = [
        seconds(lambda: model(input_ids=TOKEN, **{CACHE: cache}), CPU) for _ in range(count + 1)
    ]
    return 1e3 * median(times[1:])


def shallow(model: PreTrainedModel, layers: int) -> PreTrainedModel:
    """Build a model of that shape with random weights and ``layers`` layers."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    small: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
        config, dtype=model.dtype
    )
    small.eval()  # type: ignore[no-untyped-call]
    return small


def reading_speed() -> float:
    """Return bytes per second of reading a tensor larger than all caches."""
    x = torch.ones(2**28)
    return x.nbytes / median(seconds(x.sum, CPU) for _ in range(7))


def table(found: Sequence[Step], rest_ms: float) -> list[str]:
    """Return one row per step; ``rest_ms`` is the stock model's step without pairs."""
    lines = [
        "| prompt | kept | heads | KV, MB | ms/token | bound, ms | of the bound | pairs, ms | "
        "of their bound |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for s in found:
        lines.append(
            f"| {s.tokens:,} | {s.kept:.0%} | {s.heads} | {s.kv_bytes / 1e6:.0f} | "
            f"{s.ms:.1f} | {s.bound_ms:.1f} | {s.ms / s.bound_ms:.2f} | {s.ms - rest_ms:.1f} | "
            f"{(s.ms - rest_ms) / s.pairs_ms:.2f} |"
        )
    return lines


def plot(
    by_tokens: Sequence[Step],
    by_budget: Sequence[Step],
    at: int,
    read: Reads,
) -> str:
    """Plot time per token against prompt and budget, with bounds dashed, and prefill time against
    the prompt.
    """
    figure, (left, right, reading) = axes(columns=3)
    lines = dict.fromkeys((s.kept, s.heads) for s in by_tokens)
    for colour, (kept, heads) in enumerate(lines):
        mine = [s for s in by_tokens if (s.kept, s.heads) == (kept, heads)]
        name = "full" if kept == 1 else f"{kept:.0%}, {heads}"
        left.plot([s.tokens for s in mine], [s.ms for s in mine], f"C{colour}o-", label=name)
        left.plot([s.tokens for s in mine], [s.bound_ms for s in mine], f"C{colour}--", lw=0.8)
    left.set(xscale="log", yscale="log", xlabel="tokens of the prompt", ylabel="ms a token")
    for colour, heads in enumerate(dict.fromkeys(s.heads for s in by_budget), start=1):
        mine = [s for s in by_budget if s.heads == heads]
        shares = [100 * s.kept for s in mine]
        right.plot(shares, [s.ms for s in mine], f"C{colour}o-", label=heads)
        right.plot(shares, [s.bound_ms for s in mine], f"C{colour}--", lw=0.8)
    right.set(xlabel=f"% kept of {at:,} tokens", ylim=(0, None))
    for colour, name in enumerate(("stock", *READ)):
        of = {
            n: next(iter(prefills.values())) if name == "stock" else prefills[name]
            for n, prefills in read.items()
        }
        times = [p.alone * (1.0 if name == "stock" else p.ratio) for p in of.values()]
        reading.plot(list(of), times, f"C{colour}o-", label=name)
    reading.set(
        xscale="log",
        yscale="log",
        xlabel="tokens of the prompt",
        ylabel=f"prefill, s ({READ_LAYERS} layers)",
    )
    for axis in (left, right, reading):
        axis.legend(frameon=False, fontsize=7)
    return svg(figure)


def steps(
    a: argparse.Namespace, model: PreTrainedModel, speed: float
) -> tuple[list[Step], list[Step]]:
    """Measure decoding steps by prompt and by budget."""
    forms = [
        (n, kept, heads)
        for n in a.tokens
        for kept, heads in ((1.0, "dense"), (0.2, "dense"), (0.2, "ragged"))
    ]
    wide = [(a.at, kept, heads) for heads in ("dense", "ragged") for kept in BUDGETS]
    measured = [step(model, *form, a.steps, speed) for form in track(forms + wide, "decoding")]
    return measured[: len(forms)], measured[len(forms) :]


def reads(loaded: Loaded, rounds: int) -> Reads:
    """Measure prefills of a few layers by prompt length."""
    policies = [foveate.policy(spec, budget="20%") for spec in READ]
    few = replace(loaded, model=shallow(loaded.model, READ_LAYERS))
    read = {}
    for n in track(READ_TOKENS, "prefill"):
        with torch.no_grad():
            of = prefills(of_model(few, n), policies, rounds, lambda: None)
            read[n] = dict(zip(READ, of.values(), strict=True))
    return read


def earlier_reads(machine: str) -> Reads:
    """Return the prefills of the last run, if it was on this machine."""
    last = earlier("scaling")
    if last["machine"] != machine:
        raise SystemExit(f"The prefills were measured on {last['machine']}, and this is {machine}.")
    return {
        int(n): {spec: Prefill(**row) for spec, row in of.items()}
        for n, of in last["prefill"].items()
    }


def page(data: Mapping[str, Any], at: int, found: Sequence[Sequence[Step]], read: Reads) -> str:
    """Return the page in Markdown."""
    by_tokens, by_budget = found
    rest_ms = data["without_pairs_ms"]
    return "\n".join(
        [
            "# How costs grow",
            "",
            f"SmolLM2-135M's shape, float32, {data['threads']} threads of {data['machine']}, torch "
            f"{data['torch']}, which reads {data['bytes_per_s'] / 1e9:.1f} GB/s here. The bound is "
            "what reading all weights and all kept pairs once takes at that speed. A step of the "
            f"stock model over a single pair takes {rest_ms:.1f} ms: the last two columns are what "
            "is beyond it, and that to the time in which the pairs can be read. Ragged heads keep "
            "50, 100 and 150 % of the mean.",
            "",
            "![Time per token, and its bound](scaling.svg)",
            "",
            "## Decoding against the prompt",
            "",
            *table(by_tokens, rest_ms),
            "",
            f"## Decoding against the budget, {at:,} tokens",
            "",
            *table(by_budget, rest_ms),
            "",
            "## Prefill against the prompt",
            "",
            f"{READ_LAYERS} of the model's layers, all of which cost the same: time under the "
            "policy (20 % kept) over the stock prefill's, which is given in seconds.",
            "",
            f"| tokens | stock, s | {' | '.join(READ)} |",
            f"|---|---|{'---|' * len(READ)}",
            *(
                f"| {n:,} | {next(iter(of.values())).alone:.2f} | "
                f"{' | '.join(f'{prefill.ratio:.3f}' for prefill in of.values())} |"
                for n, of in read.items()
            ),
            "",
        ]
    )


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 16384, 65536, 131072])
    parser.add_argument(
        "--at", type=int, default=32768, help="tokens of the prompt for all budgets"
    )
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2, help="rounds of prefills")
    parser.add_argument("--only", choices=["decoding"], help="keep the prefills of the last run")
    a = parser.parse_args()
    loaded, speed = load("smollm2"), reading_speed()
    rest_ms = without_pairs(loaded.model, 2 * a.steps)
    found = steps(a, loaded.model, speed)
    read = earlier_reads(machine()["machine"]) if a.only else reads(loaded, a.rounds)
    by_tokens, by_budget = ([asdict(s) for s in steps_found] for steps_found in found)
    data = {
        "by_tokens": by_tokens,
        "by_budget": by_budget,
        "prefill": {n: {spec: p._asdict() for spec, p in of.items()} for n, of in read.items()},
        "without_pairs_ms": rest_ms,
        "bytes_per_s": speed,
        **machine(),
    }
    write("scaling", page(data, a.at, found, read), data)
    (RESULTS / "scaling.svg").write_text(plot(*found, a.at, read), encoding="utf-8")


if __name__ == "__main__":
    main()
