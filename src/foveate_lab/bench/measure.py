"""One row per policy: what it adds to the prefill and what it saves in decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from foveate.compression.composition import policy as policy_of
from foveate.compression.labels import budget_of, label
from foveate.policies.policy import Policy
from foveate_lab.bench.memory import freed_at_once, peak_of
from foveate_lab.bench.subject import Subject
from foveate_lab.bench.timing import (
    Decoding,
    FilledCache,
    Prefill,
    Prefills,
    Throughput,
    decoding,
    prefill,
    prefills,
    room_for_caches,
    stock,
    throughput,
)


@dataclass(frozen=True)
class BenchRow:
    """Cost of one policy. Times are medians; ratios are to the stock prefill, and in decoding to
    the full cache, which is preallocated.

    ``peak_bytes`` is the prefill's peak above the model, None where it is unknown;
    ``batch`` the rows whose caches fit into the available memory, with ``tokens_per_s`` over all.
    """

    method: str
    budget: str | None
    tokens: int
    kept_tokens: float
    kv_bytes: int
    kv_share: float
    prefill_s: float
    prefill_ratio: float
    compress_s: float
    peak_bytes: int | None
    decode_ms_per_token: float
    decode_ratio: float
    batch: int | None
    tokens_per_s: float | None


@torch.no_grad()
def bench(
    subject: Subject,
    policies: Sequence[Policy],
    *,
    rounds: int = 3,
    steps: int = 32,
    memory: int | None = None,
    timed: Prefills = prefills,
    tick: Callable[[], object] = lambda: None,
) -> list[BenchRow]:
    """Measure the full cache and every policy on one prompt.

    Args:
        subject: the model and the prompt.
        policies: policies of its cache; the full cache always comes first.
        rounds: rounds per median; one more prefill of each warms up.
        steps: decoding steps.
        memory: bytes that the caches of a batch may take; None: 80 % of a GPU's free memory, 1 GiB
            on a CPU.
        timed: function that times prefills; between stock ones by default.
        tick: called after each measurement, ``ticks`` times in all.
    """
    full = policy_of("full")
    chosen = list({policy.spec: policy for policy in (full, *policies)}.values())
    with freed_at_once():
        stock(subject)  # memory-mapped weights become resident, so no peak counts them
    caches: list[FilledCache] = []
    peaks: list[int | None] = []
    for policy in chosen:
        peaks.append(peak_of(lambda p=policy: caches.append(prefill(subject, p)), subject.device))  # type: ignore[misc]
        tick()
    before = timed(subject, chosen, rounds, tick)
    after = decoding(subject, caches, rounds, steps, tick)
    room = room_for_caches(subject.device) if memory is None else memory
    rows = []
    for filled, peak in zip(caches, peaks, strict=True):
        spec, batch_rate = filled.policy.spec, throughput(subject, filled, room, steps)
        rows.append(_row(subject, filled, before[spec], after[spec], peak, batch_rate))
        tick()
    return rows


def ticks(policies: int, rounds: int) -> int:
    """Return how often :func:`bench` ticks for ``policies`` policies, the full cache included."""
    return policies * (2 + (rounds + 1) + rounds)


def _row(
    subject: Subject,
    filled: FilledCache,
    before: Prefill,
    after: Decoding,
    peak: int | None,
    batch_rate: Throughput | None,
) -> BenchRow:
    stats = filled.stats
    return BenchRow(
        method=label(filled.policy),
        budget=budget_of(filled.policy),
        tokens=subject.ids.shape[1],
        kept_tokens=stats.kept_tokens,
        kv_bytes=stats.bytes_after,
        kv_share=stats.bytes_after / stats.bytes_before,
        prefill_s=round(before.alone * before.ratio, 4),
        prefill_ratio=round(before.ratio, 4),
        compress_s=round(before.stages, 4),
        peak_bytes=peak,
        decode_ms_per_token=round(after.ms, 3),
        decode_ratio=round(after.ratio, 4),
        batch=None if batch_rate is None else batch_rate.rows,
        tokens_per_s=None if batch_rate is None else round(batch_rate.tokens_per_s, 2),
    )
