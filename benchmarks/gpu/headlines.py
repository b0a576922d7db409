"""The papers' own figures of speed, set up again: claimed beside measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple

from benchmarks.gpu.models import (
    SuiteSetting,
    measured_with,
    short,
    stepping,
    subject_of,
    with_other_prompt,
)
from benchmarks.gpu.rows import NEEDS_CUDA, WARM, Row, attempted, graphed, table
from foveate.compression.composition import policy as policy_of
from foveate.hf import compress
from foveate.hf.layer.stats import now
from foveate_lab.bench.memory import peak_of
from foveate_lab.bench.subject import Subject

WARM_UP, ROUNDS = 8, 2
TIMED = {False: 32, True: 128}
"""Tokens of an answer that are timed, without and with CUDA graphs. All take equally long, but for
the pairs that a full cache gains.
"""


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
HEADLINES = (
    Headline(
        "PrefixKV, table 3", "prefixkv:budget=20%", "llava-1.5-7b", 1024, 512, 16, "all", 1.8,
        "1.8 times the throughput (A100)", "nothing",
    ),
    Headline(
        "LOOK-M, table 4", "lookm:budget=5%", "llava-1.5-7b", 3113, 128, 1, "a token",
        28.55 / 18.22, "28.55 to 18.22 ms a token", "the prompt, from 1.52 GiB; the answer",
    ),
    Headline(
        "CSP, table 2", "csp:budget=10%", "llava-1.5-7b", 3217, 128, 1, "a token", 26.023 / 16.287,
        "26.02 to 16.29 ms a token (RTX 4090)", "the prompt, from 1.571 GiB; the answer",
    ),
    Headline(
        "DAVID, table 5", "david:budget=5%", "llava-1.5-7b", 2403, 128, 1, "a token", 26.23 / 16.46,
        "26.23 to 16.46 ms a token", "the prompt, from 1.26 GB; the answer",
    ),
    Headline(
        "MixKV, figure 4", "mixkv:budget=64", "qwen2-vl-7b", 32000, 512, 1, "all", 53.60 / 27.56,
        "53.60 to 27.56 s", "the answer",
    ),
    Headline(
        "MixKV, figure 4", "mixkv:budget=64", "qwen2-vl-7b", 32000, 512, 1, "all", 1 / 1.01,
        "at most 1 % longer than SnapKV", "the answer", base="snapkv:budget=64",
    ),
)  # fmt: skip


class AnsweredSeconds(NamedTuple):
    """Seconds of reading and of answering, bytes of the cache then."""

    read: float
    answered: float
    held: int


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Every headline, eager and with CUDA graphs; models of one shape are made once."""
    for name, some in groupby(HEADLINES, lambda one: one.dims):
        yield from _of_model(name, list(some), setting)


def _of_model(name: str, headlines: Sequence[Headline], setting: SuiteSetting) -> Iterator[Row]:
    """When this ends the model is gone: two of them may not fit."""
    model = subject_of(name, 1, setting)
    for one in headlines:
        batch = min(2, one.batch) if setting.quick else one.batch
        prompt = with_other_prompt(model, one.tokens, setting, batch=batch)
        for graphs in (False, True):
            what = {
                "paper": one.paper,
                "policy": one.policy,
                "base": one.base,
                "said": one.said,
                "claimed": one.claimed,
                "how": "CUDA graph" if graphs else "eager",
            }
            yield attempted(what, _measured, one, prompt, graphs, setting)


def _measured(
    one: Headline, subject: Subject, graphs: bool, setting: SuiteSetting
) -> dict[str, Any]:
    """The base and the policy in turns, after a short answer each that warms up; medians."""
    if graphs and not setting.on_gpu:
        return {"failed": NEEDS_CUDA}
    count = short(one.answer, setting)
    timed = min(count, TIMED[graphs])
    runs: dict[str, list[AnsweredSeconds]] = {one.base: [], one.policy: []}
    peaks = []
    with measured_with(setting):
        for spec in runs:
            warm = (subject, _small(spec, setting), min(count, WARM_UP), count, graphs)
            peaks.append(peak_of(lambda warm=warm: answer(*warm), setting.place))  # type: ignore[misc]
        for _ in range(ROUNDS):
            for spec, timings in runs.items():
                timings.append(answer(subject, _small(spec, setting), timed, count, graphs))
    return _figures(one, runs, peaks, count)


def _small(spec: str, setting: SuiteSetting) -> str:
    """What fits a toy prompt: a budget that its windows leave room in."""
    if spec == "full" or not setting.quick:
        return spec
    windows = ",window=2" if spec.startswith(("mixkv", "snapkv")) else ""
    return f"{spec.partition(':')[0]}:budget=50%{windows}"


def _figures(
    one: Headline, runs: dict[str, list[AnsweredSeconds]], peaks: list[int | None], count: int
) -> dict[str, Any]:
    base, mine = (
        [median(figures) for figures in zip(*runs[spec], strict=True)]
        for spec in (one.base, one.policy)
    )
    pairs = {
        "read_s": (base[0], mine[0]),
        "token_ms": (1e3 * base[1] / count, 1e3 * mine[1] / count),
        "all_s": (base[0] + base[1], mine[0] + mine[1]),
        "cache_mib": (base[2] / 2**20, mine[2] / 2**20),
    }
    compared = pairs["token_ms" if one.shorter == "a token" else "all_s"]
    if None not in peaks:
        pairs["peak_mib"] = tuple(peak / 2**20 for peak in peaks)  # type: ignore[operator, assignment]
    return {"measured": compared[0] / compared[1], **{k: list(v) for k, v in pairs.items()}}


def answer(subject: Subject, spec: str, timed: int, count: int, graphs: bool) -> AnsweredSeconds:
    """Reads the prompt, and feeds back its last token ``timed`` times; ``count`` times take as much
    longer. Capturing is not timed.
    """
    device = subject.device
    with compress(subject.model, policy_of(spec), vision=subject.vision) as session:
        start = now(device)
        cache: Any = session.prefill(input_ids=subject.ids)
        read = now(device) - start
        step = stepping(subject, session.fixed(count + WARM + 1) if graphs else cache)
        work = graphed(step) if graphs else step
        start = now(device)
        for _ in range(timed):
            work()
        answered = (now(device) - start) * count / timed
        return AnsweredSeconds(read, answered, session.bytes_held)


def page(measured: Sequence[Row]) -> list[str]:
    """Claimed beside measured, then what was set up."""
    columns = {
        "paper": "claim of", "policy": "policy", "base": "instead of", "how": "how",
        "said": "said", "claimed": "claimed", "measured": "measured", "read_s": "read, s",
        "token_ms": "ms a token", "all_s": "all, s", "cache_mib": "cache, MiB",
        "peak_mib": "peak, MiB",
    }  # fmt: skip
    set_up = [
        f"* {one.paper}, `{one.policy}`: {one.dims}, batch {one.batch}, {one.tokens:,} + "
        f"{one.answer} tokens; assumed: {one.assumed}."
        for one in HEADLINES
    ]
    return [
        "Claimed and measured are by how much the policy's time is shorter; pairs of figures are "
        f"the other's and the policy's, run in turns. Medians of {ROUNDS} rounds. Of an answer the "
        f"first {TIMED[False]} tokens are timed, with CUDA graphs {TIMED[True]}, and taken as many "
        "times as it is longer. Peaks are above the model.",
        "",
        *table([_shown(row) for row in measured], columns),
        "",
        *set_up,
    ]


def _shown(row: Row) -> Row:
    return {
        name: " to ".join(f"{x:.4g}" for x in value) if isinstance(value, list) else value
        for name, value in row.items()
    }
