"""Speed figures of the papers, reproduced: claimed beside measured."""

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
"""Timed tokens of an answer, without and with CUDA graphs.

All tokens take equally long, except for the pairs that a full cache gains.
"""


@dataclass(frozen=True)
class Headline:
    """Speed figure of a paper.

    ``shorter``: the time that is compared. ``claimed``: ratio of ``base``'s time to the policy's.
    ``assumed``: settings that the paper leaves open.
    """

    paper: str
    policy: str
    dims: str
    tokens: int
    answer: int
    batch: int
    shorter: str
    claimed: float
    quote: str
    assumed: str
    base: str = "full"


# Prompt lengths of LLaVA-7B follow from the reported cache sizes, at 512 KiB a token in 16 bits.
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
    """Seconds of prefill and decoding, and bytes of the cache at the end."""

    read: float
    answered: float
    cache_bytes: int


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield every headline, eager and with CUDA graphs; models of one shape are built once."""
    for name, group in groupby(HEADLINES, lambda headline: headline.dims):
        yield from _of_model(name, list(group), setting)


def _of_model(name: str, headlines: Sequence[Headline], setting: SuiteSetting) -> Iterator[Row]:
    """Yield one model's rows; it is freed at the end, because two may not fit."""
    model = subject_of(name, 1, setting)
    for headline in headlines:
        batch = min(2, headline.batch) if setting.quick else headline.batch
        prompt = with_other_prompt(model, headline.tokens, setting, batch=batch)
        for graphs in (False, True):
            about = {
                "paper": headline.paper,
                "policy": headline.policy,
                "base": headline.base,
                "said": headline.quote,
                "claimed": headline.claimed,
                "how": "CUDA graph" if graphs else "eager",
            }
            yield attempted(about, _measured, headline, prompt, graphs, setting)


def _measured(
    headline: Headline, subject: Subject, graphs: bool, setting: SuiteSetting
) -> dict[str, Any]:
    """Measure base and policy in turns, after a short warm-up answer of each; medians."""
    if graphs and not setting.on_gpu:
        return {"failed": NEEDS_CUDA}
    count = short(headline.answer, setting)
    timed = min(count, TIMED[graphs])
    runs: dict[str, list[AnsweredSeconds]] = {headline.base: [], headline.policy: []}
    peaks = []
    with measured_with(setting):
        for spec in runs:
            warm = (subject, _small(spec, setting), min(count, WARM_UP), count, graphs)
            peaks.append(peak_of(lambda warm=warm: answer(*warm), setting.torch_device))  # type: ignore[misc]
        for _ in range(ROUNDS):
            for spec, timings in runs.items():
                timings.append(answer(subject, _small(spec, setting), timed, count, graphs))
    return _figures(headline, runs, peaks, count)


def _small(spec: str, setting: SuiteSetting) -> str:
    """Return a spec that fits a toy prompt: its windows leave room in the budget."""
    if spec == "full" or not setting.quick:
        return spec
    windows = ",window=2" if spec.startswith(("mixkv", "snapkv")) else ""
    return f"{spec.partition(':')[0]}:budget=50%{windows}"


def _figures(
    headline: Headline, runs: dict[str, list[AnsweredSeconds]], peaks: list[int | None], count: int
) -> dict[str, Any]:
    base, mine = (
        [median(figures) for figures in zip(*runs[spec], strict=True)]
        for spec in (headline.base, headline.policy)
    )
    pairs = {
        "read_s": (base[0], mine[0]),
        "token_ms": (1e3 * base[1] / count, 1e3 * mine[1] / count),
        "all_s": (base[0] + base[1], mine[0] + mine[1]),
        "cache_mib": (base[2] / 2**20, mine[2] / 2**20),
    }
    compared = pairs["token_ms" if headline.shorter == "a token" else "all_s"]
    if None not in peaks:
        pairs["peak_mib"] = tuple(peak / 2**20 for peak in peaks)  # type: ignore[operator, assignment]
    return {"measured": compared[0] / compared[1], **{k: list(v) for k, v in pairs.items()}}


def answer(subject: Subject, spec: str, timed: int, count: int, graphs: bool) -> AnsweredSeconds:
    """Prefill the prompt and decode ``timed`` tokens, extrapolated to ``count``. Capturing is not
    timed.
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
    """Return the table of claimed and measured figures, then the settings."""
    columns = {
        "paper": "claim of", "policy": "policy", "base": "instead of", "how": "how",
        "said": "said", "claimed": "claimed", "measured": "measured", "read_s": "read, s",
        "token_ms": "ms a token", "all_s": "all, s", "cache_mib": "cache, MiB",
        "peak_mib": "peak, MiB",
    }  # fmt: skip
    set_up = [
        f"* {h.paper}, `{h.policy}`: {h.dims}, batch {h.batch}, {h.tokens:,} + "
        f"{h.answer} tokens; assumed: {h.assumed}."
        for h in HEADLINES
    ]
    return [
        "Claimed and measured are by how much the policy's time is shorter; pairs of figures are "
        f"the other's and the policy's, run in turns. Medians of {ROUNDS} rounds. Of an answer the "
        f"first {TIMED[False]} tokens are timed, with CUDA graphs {TIMED[True]}, and taken as many "
        "times as it is longer. Peaks are above the model.",
        "",
        *table([_joined_pairs(row) for row in measured], columns),
        "",
        *set_up,
    ]


def _joined_pairs(row: Row) -> Row:
    return {
        name: " to ".join(f"{x:.4g}" for x in value) if isinstance(value, list) else value
        for name, value in row.items()
    }
