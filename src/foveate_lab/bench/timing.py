"""Times, as ratios of what stands side by side in one run."""

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
    """``alone`` is the stock prefill in seconds; ``ratio`` the one under the policy over it, and
    ``stages`` the seconds of it that the policy's stages took by their own clock.
    """

    alone: float
    ratio: float
    stages: float


Prefills = Callable[[Subject, Sequence[Policy], int, Tick], dict[str, Prefill]]
"""Times every policy's prefill in as many rounds."""


class Decoding(NamedTuple):
    """Milliseconds a token, and the ratio to the first of what is compared."""

    ms: float
    ratio: float


Times = TypeVar("Times", Prefill, Decoding)


def medians(runs: Sequence[Times]) -> Times:
    """The median of each figure."""
    return type(runs[0])(*map(median, zip(*runs, strict=True)))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call, until the device has done it."""
    start = now(device)
    work()
    return now(device) - start


def stock(subject: Subject) -> None:
    """The prefill without a policy: the stock model and cache."""
    cache = DynamicCache(config=subject.model.config)
    subject.model(input_ids=subject.ids, **{CACHE: cache}, logits_to_keep=1)


class FilledCache(NamedTuple):
    """The prompt's cache under a policy."""

    policy: Policy
    cache: DynamicCache
    stats: Stats


def prefill(subject: Subject, policy: Policy) -> FilledCache:
    """Reads the prompt under a policy."""
    with compress(subject.model, policy, vision=subject.vision) as session:
        cache = session.prefill(input_ids=subject.ids)
        return FilledCache(policy, cache, session.stats)


def prefills(
    subject: Subject, policies: Sequence[Policy], rounds: int, tick: Tick
) -> dict[str, Prefill]:
    """Every policy between two stock prefills, whose mean it is compared with, so that a machine
    that slows down for a while slows both; the medians of all rounds but the first, which warms up
    and counts where it is the only one.
    """
    timings: dict[str, list[Prefill]] = {policy.spec: [] for policy in policies}
    for _ in range(rounds + 1):
        before = seconds(lambda: stock(subject), subject.device)
        for policy in policies:
            stages: list[float] = []
            whole = seconds(
                lambda p=policy, s=stages: s.append(prefill(subject, p).stats.seconds),  # type: ignore[misc]
                subject.device,
            )
            after = seconds(lambda: stock(subject), subject.device)
            alone, before = (before + after) / 2, after
            timings[policy.spec].append(Prefill(alone, whole / alone, stages[0]))
            tick()
    return {spec: medians(runs[1:] or runs) for spec, runs in timings.items()}


def steps(subject: Subject, filled: FilledCache, count: int, rows: int = 1) -> float:
    """Mean seconds of ``count`` decoding steps on a copy of the cache with its row repeated, after
    one step that makes room.
    """
    with compress(subject.model, filled.policy) as session, torch.no_grad():
        cache = session.fork(filled.cache)
        if rows > 1:
            cache.batch_repeat_interleave(rows)
        return of_steps(subject, cache, count, rows)


def of_steps(subject: Subject, cache: DynamicCache, count: int, rows: int = 1) -> float:
    """The same on a cache as it is."""
    token = subject.ids[:, -1:].expand(rows, 1)
    times = [
        seconds(lambda: subject.model(input_ids=token, **{CACHE: cache}), subject.device)
        for _ in range(count + 1)
    ]
    return mean(times[1:])


def decoding(
    subject: Subject, caches: Sequence[FilledCache], rounds: int, count: int, tick: Tick
) -> dict[str, Decoding]:
    """Every policy's steps in turns with those of the first; medians over the rounds."""
    timings: dict[str, list[Decoding]] = {one.policy.spec: [] for one in caches}
    for _ in range(rounds):
        times = {}
        for one in caches:
            times[one.policy.spec] = steps(subject, one, count)
            tick()
        for spec, mine in times.items():
            timings[spec].append(Decoding(1000 * mine, mine / times[caches[0].policy.spec]))
    return {spec: medians(runs) for spec, runs in timings.items()}


ON_CPU = 2**30  # bytes of caches where nothing else is asked for
SHARE = 0.8  # of a GPU's free memory


class Throughput(NamedTuple):
    """Rows that go on together, and the tokens that they give each second."""

    rows: int
    tokens_per_s: float


def room_for_caches(device: torch.device) -> int:
    """Bytes that caches may take by default."""
    if device.type != "cuda":
        return ON_CPU
    return int(SHARE * torch.cuda.mem_get_info(device)[0])


def throughput(subject: Subject, filled: FilledCache, memory: int, count: int) -> Throughput | None:
    """Decoding with as many copies of one prompt's cache as fit into ``memory`` bytes, with room
    for their answers; None if not even one does. A GPU that has less than that halves the batch.
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
    """What one row's cache holds after ``count`` more tokens."""
    with compress(subject.model, filled.policy) as session, torch.no_grad():
        copy = session.fork(filled.cache)
        token = subject.ids[:, -1:]
        for _ in range(count + 1):
            subject.model(input_ids=token, **{CACHE: copy})
        return session.bytes_held
