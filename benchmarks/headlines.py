"""The papers' own figures of speed, set up again on a CUDA GPU: claimed beside measured.

    python benchmarks/headlines.py [--rounds 3] [--only lookm csp] [--kernels triton] [--graphs]

Shapes of the papers' models with random weights in bfloat16; the full cache, which is preallocated,
and the policy answer in turns; with `--graphs` both replay a captured step. Writes
benchmarks/results/gpu.md and .json. `--layers 1` tries the script out on any machine, and writes
nothing.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple, get_args

import torch
from written import write

from foveate.backends.hf import compress
from foveate.backends.hf.internals import CACHE
from foveate.backends.hf.stats import now
from foveate.bench import Subject, of_dims
from foveate.errors import FoveateError
from foveate.ops import using
from foveate.ops.choice import Impl


@dataclass(frozen=True)
class Headline:
    """One figure of a paper. ``shorter`` says what is compared, and ``claimed`` by how much the
    policy's is shorter than that of ``base``. What the paper leaves open is ours: ``assumed``.
    """

    paper: str
    policy: str
    dims: str
    tokens: int
    answer: int
    batch: int
    shorter: str
    claimed: float
    said: str
    assumed: str
    base: str = "full"


# Prompts of 7B LLaVA follow from the cache that the papers report, at 512 KiB a token in 16 bits
HEADLINES = {
    "prefixkv": Headline(
        "PrefixKV, table 3", "prefixkv:budget=20%", "llava-1.5-7b", 1024, 512, 16, "all", 1.8,
        "1.8 times the throughput (A100)", "nothing",
    ),
    "lookm": Headline(
        "LOOK-M, table 4", "lookm:budget=5%", "llava-1.5-7b", 3113, 128, 1, "a token",
        28.55 / 18.22, "28.55 to 18.22 ms a token", "the prompt, from 1.52 GiB; the answer",
    ),
    "csp": Headline(
        "CSP, table 2", "csp:budget=10%", "llava-1.5-7b", 3217, 128, 1, "a token", 26.023 / 16.287,
        "26.02 to 16.29 ms a token (RTX 4090)", "the prompt, from 1.571 GiB; the answer",
    ),
    "david": Headline(
        "DAVID, table 5", "david:budget=5%", "llava-1.5-7b", 2403, 128, 1, "a token", 26.23 / 16.46,
        "26.23 to 16.46 ms a token", "the prompt, from 1.26 GB; the answer",
    ),
    "mixkv": Headline(
        "MixKV, figure 4", "mixkv:budget=64", "qwen2-vl-7b", 32000, 512, 1, "all", 53.60 / 27.56,
        "53.60 to 27.56 s", "the answer",
    ),
    "mixkv, to snapkv": Headline(
        "MixKV, figure 4", "mixkv:budget=64", "qwen2-vl-7b", 32000, 512, 1, "all", 1 / 1.01,
        "at most 1 % longer than SnapKV", "the answer", base="snapkv:budget=64",
    ),
}  # fmt: skip


WARM = 3  # steps before a capture


class Answered(NamedTuple):
    """Seconds of reading and of answering, bytes of the cache then."""

    read: float
    answered: float
    held: int


def answer(subject: Subject, policy: str, count: int, graphs: bool) -> Answered:
    """Reads the prompt, and feeds back its last token so many times. Capturing is not timed."""
    device = subject.device
    with compress(subject.model, policy, vision=subject.vision) as session, torch.no_grad():
        start = now(device)
        cache = session.prefill(input_ids=subject.ids)
        read = now(device) - start
        step = stepping(subject, session.fixed(count + WARM) if graphs else cache)
        if graphs:
            step = graphed(step)
        start = now(device)
        for _ in range(count):
            step()
        return Answered(read, now(device) - start, session.bytes_held)


def stepping(subject: Subject, cache: Any) -> Callable[[], torch.Tensor]:
    """One step, of the prompt's last token."""
    token = subject.ids[:, -1:].clone()
    return lambda: subject.model(input_ids=token, **{CACHE: cache}).logits


def graphed(step: Callable[[], torch.Tensor]) -> Callable[[], Any]:
    """The step as a CUDA graph, after steps on a stream of their own that make what is made once.

    Capturing runs nothing, and the replay goes on where the last of them stopped.
    """
    aside, current = torch.cuda.Stream(), torch.cuda.current_stream()
    aside.wait_stream(current)
    with torch.cuda.stream(aside):
        for _ in range(WARM):
            step()
    current.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def measured(
    one: Headline, rounds: int, layers: int | None, graphs: bool
) -> dict[str, list[float]]:
    """For the base and the policy, in turns: seconds of reading, milliseconds a token, seconds of
    both together, MiB held; medians of all rounds but the first.
    """
    subject = of_dims(one.dims, one.tokens, layers=layers)
    subject = replace(subject, ids=subject.ids.expand(one.batch, -1))
    runs: dict[str, list[Answered]] = {one.base: [], one.policy: []}
    for _ in range(rounds + 1):
        for policy, found in runs.items():
            found.append(answer(subject, policy, one.answer, graphs))
    row = {}
    for policy, found in runs.items():
        read, answered, held = (median(x) for x in zip(*found[1:], strict=True))
        row[policy] = [read, 1000 * answered / one.answer, read + answered, held / 2**20]
    return row


def row(one: Headline, found: dict[str, list[float]]) -> str:
    """One line of the table."""
    base, mine = found[one.base], found[one.policy]
    place = {"a token": 1, "all": 2}[one.shorter]
    pairs = [f"{x:.2f} to {y:.2f}" for x, y in zip(base, mine, strict=True)]
    return (f"| {one.paper} | `{one.policy}` | {one.dims}, batch {one.batch}, {one.tokens:,} + "
            f"{one.answer} | {one.said}: {one.claimed:.2f} | {base[place] / mine[place]:.2f} | "
            f"{' | '.join(pairs)} | {one.assumed} |")  # fmt: skip


def page(lines: Sequence[str], where: str, rounds: int) -> str:
    """The results."""
    head = ["claim of", "policy", "set up", "claimed", "measured", "read, s", "ms a token",
            "all, s", "cache, MiB", "assumed"]  # fmt: skip
    return "\n".join([
        "# The papers' figures of speed", "",
        f"{where}, PyTorch {torch.__version__}, bfloat16, random weights of the models' shapes. "
        "The full cache (for the last line SnapKV) to the policy, run in turns; claimed and "
        f"measured are by how much the policy's time is shorter. Medians of {rounds} rounds.", "",
        f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines,
    ])  # fmt: skip


def main() -> None:
    """Measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=HEADLINES, default=list(HEADLINES))
    parser.add_argument("--kernels", choices=get_args(Impl), default="reference")
    parser.add_argument("--graphs", action="store_true", help="replay a captured step")
    parser.add_argument("--layers", type=int, help="only the first N layers: a trial, not written")
    a = parser.parse_args()
    if a.layers is None and not torch.cuda.is_available():
        sys.exit(
            "this benchmark needs a CUDA GPU, and PyTorch finds none. --layers 1 tries it out."
        )
    if a.graphs and not torch.cuda.is_available():
        sys.exit("--graphs needs a CUDA GPU, and PyTorch finds none. Leave it out.")
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    where += f", {a.kernels} kernels" + (", CUDA graphs" if a.graphs else "")
    lines, data = [], {}
    for name in a.only:
        one = HEADLINES[name]
        try:
            with using(a.kernels):
                data[name] = measured(one, a.rounds, a.layers, a.graphs)
            lines.append(row(one, data[name]))
        except (torch.cuda.OutOfMemoryError, FoveateError) as error:
            lines.append(f"| {one.paper} | `{one.policy}` | failed: {error} |")
        gc.collect()
        print(lines[-1], file=sys.stderr)
    text = page(lines, where, a.rounds)
    if a.layers is None:
        write("gpu", text, {"gpu": where, "torch": torch.__version__, "headlines": data})
    print(text)


if __name__ == "__main__":
    main()
