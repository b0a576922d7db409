"""Times of prefills and decoding steps, as ratios to a reference measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean, median
from typing import NamedTuple, TypeVar

import torch
from transformers import DynamicCache

from foveate.hf import Stats, compress
from foveate.hf.layer.stats import now
from foveate.hf.model.internals import CACHE
from foveate.policies.policy import Policy
from foveate_lab.bench.subject import Subject

Tick = Callable[[], object]


class Prefill(NamedTuple):
    """Time of a prefill.

    ``alone`` is the stock prefill in seconds; ``ratio`` the prefill under the policy over it;
    ``stages`` the seconds of it that the policy's stages took by their own clock.
    """

    alone: float
    ratio: float
    stages: float


Prefills = Callable[[Subject, Sequence[Policy], int, Tick], dict[str, Prefill]]
"""Function that times every policy's prefill in so many rounds."""


class Decoding(NamedTuple):
    """Milliseconds per token, and the ratio to the first policy."""

    ms: float
    ratio: float


Times = TypeVar("Times", Prefill, Decoding)


def medians(runs: Sequence[Times]) -> Times:
    """Return the median of each figure."""
    return type(runs[0])(*map(median, zip(*runs, strict=True)))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of one call, including pending work of the device."""
    start = now(device)
    work()
    return now(device) - start


def stock(subject: Subject) -> None:
    """Run the prefill without a policy: stock model and cache."""
    cache = DynamicCache(config=subject.model.config)
    subject.model(input_ids=subject.ids, **{CACHE: cache}, logits_to_keep=1)


class FilledCache(NamedTuple):
    """Cache of the prompt under a policy."""

    policy: Policy
    cache: DynamicCache
    stats: Stats


def prefill(subject: Subject, policy: Policy) -> FilledCache:
    """Prefill the prompt under a policy."""
    with compress(subject.model, policy, vision=subject.vision) as session:
        cache = session.prefill(input_ids=subject.ids)
        return FilledCache(policy, cache, session.stats)


def prefills(
    subject: Subject, policies: Sequence[Policy], rounds: int, tick: Tick
) -> dict[str, Prefill]:
    """Time every policy's prefill between two stock ones and compare it with their mean.

    A machine that slows down for a while thus slows both. Returns the medians of all rounds but the
    first, which warms up and counts only if it is the only one.
    """
    timings: dict[str, list[Prefill]] = {policy.spec: [] for policy in policies}
    for _ in range(rounds + 1):
        before = seconds(lambda: stock(subject), subject.device)
        for policy in policies:
            stages: list[float] = []
            prefill_s = seconds(
                lambda p=policy, s=stages: s.append(prefill(subject, p).stats.seconds),  # type: ignore[misc]
                subject.device,
            )
            after = seconds(lambda: stock(subject), subject.device)
            alone, before = (before + after) / 2, after
            timings[policy.spec].append(Prefill(alone, prefill_s / alone, stages[0]))
            tick()
    return {spec: medians(runs[1:] or runs) for spec, runs in timings.items()}


def steps(subject: Subject, filled: FilledCache, count: int, rows: int = 1) -> float:
    """Return the mean seconds of ``count`` decoding steps on a copy of the cache.

    The row is repeated ``rows`` times; one more step before them allocates.
    """
    with compress(subject.model, filled.policy) as session, torch.no_grad():
        cache = session.fork(filled.cache)
        if rows > 1:
            cache.batch_repeat_interleave(rows)
        return of_steps(subject, cache, count, rows)


def of_steps(subject: Subject, cache: DynamicCache, count: int, rows: int = 1) -> float:
    """Return the mean seconds of ``count`` decoding steps that extend ``cache`` itself."""
    token = subject.ids[:, -1:].expand(rows, 1)
    times = [
        seconds(lambda: subject.model(input_ids=token, **{CACHE: cache}), subject.device)
        for _ in range(count + 1)
    ]
    return mean(times[1:])


def decoding(
    subject: Subject, caches: Sequence[FilledCache], rounds: int, count: int, tick: Tick
) -> dict[str, Decoding]:
    """Time every policy's steps in turns with those of the first; medians over the rounds."""
    timings: dict[str, list[Decoding]] = {filled.policy.spec: [] for filled in caches}
    for _ in range(rounds):
        times = {}
        for filled in caches:
            times[filled.policy.spec] = steps(subject, filled, count)
            tick()
        for spec, step_s in times.items():
            timings[spec].append(Decoding(1000 * step_s, step_s / times[caches[0].policy.spec]))
    return {spec: medians(runs) for spec, runs in timings.items()}


ON_CPU = 2**30  # bytes of caches by default
SHARE = 0.8  # of a GPU's free memory


class Throughput(NamedTuple):
    """Rows decoded together, and their tokens per second."""

    rows: int
    tokens_per_s: float


def room_for_caches(device: torch.device) -> int:
    """Return the bytes that caches may take by default."""
    if device.type != "cuda":
        return ON_CPU
    return int(SHARE * torch.cuda.mem_get_info(device)[0])


def throughput(subject: Subject, filled: FilledCache, memory: int, count: int) -> Throughput | None:
    """Decode as many copies of a cache as fit into ``memory`` bytes, room for answers included.

    Returns None if not even one fits. If the GPU runs out of memory, the batch is halved.
    """
    rows = memory // _bytes_of_a_row(subject, filled, count) if memory else 0
    while rows:
        try:
            return Throughput(rows, rows / steps(subject, filled, count, rows))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            rows //= 2
    return None


def _bytes_of_a_row(subject: Subject, filled: FilledCache, count: int) -> int:
    """Return the bytes of one row's cache after ``count`` more tokens."""
    with compress(subject.model, filled.policy) as session, torch.no_grad():
        copy = session.fork(filled.cache)
        token = subject.ids[:, -1:]
        for _ in range(count + 1):
            subject.model(input_ids=token, **{CACHE: copy})
        return session.bytes_held
