"""What each policy adds to the prefill, and what its decode rule adds to decoding.

    python benchmarks/overhead.py [--tokens 1024 4096] [--repeats 5]

SmolLM2-135M-Instruct on a CPU, float32, a prompt of English prose of which the middle half counts
as visual. The prefill without a policy (the stock model and cache) runs before and after every
policy's, and each policy is compared with the mean of its two neighbours: a machine that slows down
for a while slows both. Figures are medians of these ratios. Decoding is compared with a full cache
that is preallocated (`full`). Writes benchmarks/results/overhead.md and .json.
"""

from __future__ import annotations

import argparse
import platform
import pydoc_data.topics
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from rich.progress import Progress
from transformers import DynamicCache, PreTrainedModel
from written import write

import foveate
from foveate.demo import smollm2

BUDGET = "20%"
POLICIES = {  # by what they cost: a group has one target
    "window": ("snapkv", "mixkv", "knorm"),
    "window of a tenth of the prompt": ("csp", "david"),
    "column sums": ("h2o", "lookm:merging=none", "prefixkv"),
    "merging": ("lookm", "prefixkv:merging=feature", "mixkv+prefixkv+lookm.merge"),
}
TARGETS = {"window": 0.03, "column sums": 0.25, "merging": 0.40}
DECODING = ("snapkv", "prefixkv", "prefixkv:when=fixed_slot(every=16)", "h2o:when=over_budget",
            "h2o:when=over_budget(every=16)", "csp:decode_n=1")  # fmt: skip
ANSWER = 48


def prompt(tokenizer: Any, tokens: int) -> torch.Tensor:
    """English prose that every Python has: its own reference manual."""
    prose = "\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    return torch.tensor([tokenizer(prose)["input_ids"][:tokens]])


def spec_of(name: str) -> foveate.Policy:
    """The policy at the benchmark's budget."""
    return foveate.policy(name) if name == "full" else foveate.policy(name, budget=BUDGET)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def stock(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """Seconds of the prefill without a policy."""
    cache = DynamicCache(config=model.config)
    return seconds(lambda: model(input_ids=ids, past_key_values=cache, logits_to_keep=1))


def with_policy(model: PreTrainedModel, ids: torch.Tensor, name: str) -> tuple[float, float]:
    """Seconds of the prefill under a policy, and those of them that the policy's stages took."""
    visual = torch.zeros_like(ids, dtype=torch.bool)
    visual[:, ids.shape[1] // 4 : 3 * ids.shape[1] // 4] = True
    with foveate.compress(model, spec_of(name), vision=visual) as session:
        whole = seconds(lambda: session.prefill(input_ids=ids))
    return whole, session.stats.seconds


def prefills(model: PreTrainedModel, ids: torch.Tensor, repeats: int, bars: Progress) -> Any:
    """Per policy: overhead by the clock, and the share of the stages' own clock."""
    names = [name for group in POLICIES.values() for name in group]
    task = bars.add_task(f"prefill of {ids.shape[1]}", total=(repeats + 1) * len(names))
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for _ in range(repeats + 1):
        before = stock(model, ids)
        for name in names:
            whole, stages = with_policy(model, ids, name)
            after = stock(model, ids)
            alone = (before + after) / 2
            found[name].append((whole / alone - 1, stages / alone, alone))
            before = after
            bars.advance(task)
    bars.remove_task(task)
    return {
        name: {"overhead": clock, "stages": stages, "prefill_s": alone}
        for name, runs in found.items()  # the first run of each warms up
        for clock, stages, alone in [map(statistics.median, zip(*runs[1:], strict=True))]
    }


def step_times(model: PreTrainedModel, ids: torch.Tensor, name: str) -> list[float]:
    """Seconds of each decoding step after the prompt."""
    with foveate.compress(model, spec_of(name), vision=torch.zeros_like(ids, dtype=torch.bool)):
        cache = DynamicCache(config=model.config)
        token = ids[:, -1:]
        model(input_ids=ids, past_key_values=cache, logits_to_keep=1)
        return [seconds(lambda: model(input_ids=token, past_key_values=cache))
                for _ in range(ANSWER)]  # fmt: skip


def decoding(model: PreTrainedModel, ids: torch.Tensor, repeats: int, bars: Progress) -> Any:
    """Mean milliseconds per token of each policy over that of the preallocated full cache."""
    task = bars.add_task(f"decoding after {ids.shape[1]}", total=repeats * (len(DECODING) + 1))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in DECODING}
    for _ in range(repeats):
        times: dict[str, float] = {}
        for name in ("full", *DECODING):
            times[name] = statistics.mean(step_times(model, ids, name))
            bars.advance(task)
        for name in DECODING:
            found[name].append((times[name] / times["full"], 1000 * times[name]))
    bars.remove_task(task)
    return {name: {"ratio": statistics.median(r for r, _ in runs),
                   "ms_per_token": statistics.median(ms for _, ms in runs)}
            for name, runs in found.items()}  # fmt: skip


def table(result: dict[str, Any]) -> str:
    """The results as Markdown."""
    lengths = list(result["prefill"])
    head = " | ".join(f"{n} tokens" for n in lengths)
    lines = [
        "# Overhead", "",
        f"SmolLM2-135M-Instruct, CPU, {result['threads']} threads, float32, torch "
        f"{result['torch']}, transformers {result['transformers']}; {BUDGET} kept; medians of "
        f"{result['repeats']} runs.", "",
        "## Prefill", "",
        "What a policy adds to the prefill without one. In parentheses the share that its stages "
        "took by their own clock. The difference is noise of the machine and, where column sums "
        "are needed, the attention that adds them up on its way.", "",
        f"| cost | policy | {head} | target |", "|---|---|" + "---|" * (len(lengths) + 1),
    ]  # fmt: skip
    for group, names in POLICIES.items():
        target = f"<= {TARGETS[group]:.0%}" if group in TARGETS else "-"
        for name in names:
            cells = [result["prefill"][n][name] for n in lengths]
            shown = " | ".join(f"{c['overhead']:+.1%} ({c['stages']:.1%})" for c in cells)
            lines.append(f"| {group} | `{name}` | {shown} | {target} |")
    alone = ", ".join(
        f"{statistics.median(c['prefill_s'] for c in result['prefill'][n].values()):.2f} s at {n}"
        for n in lengths
    )
    lines += ["", f"The prefill alone took {alone}.", "", "## Decoding", "",
              f"Time per token over that of a preallocated full cache, {ANSWER} tokens after the "
              "prompt.", "", f"| policy | {head} |", "|---|" + "---|" * len(lengths)]  # fmt: skip
    for name in DECODING:
        cells = [result["decoding"][n][name] for n in lengths]
        shown = " | ".join(f"{c['ratio']:.2f} ({c['ms_per_token']:.1f} ms)" for c in cells)
        lines.append(f"| `{name}` | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures, writes the results, prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = smollm2.load()
    result: dict[str, Any] = {
        "torch": torch.__version__, "transformers": transformers.__version__,
        "machine": f"{platform.machine()}, {platform.system()}", "threads": options.threads,
        "repeats": options.repeats, "budget": BUDGET, "prefill": {}, "decoding": {},
    }  # fmt: skip
    with torch.no_grad(), Progress() as bars:
        for tokens in options.tokens:
            ids = prompt(tokenizer, tokens)
            result["prefill"][tokens] = prefills(model, ids, options.repeats, bars)
            result["decoding"][tokens] = decoding(model, ids, 3, bars)
    write("overhead", table(result), result)
    print(table(result))


if __name__ == "__main__":
    main()
