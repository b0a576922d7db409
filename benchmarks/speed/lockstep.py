"""Lockstep prefills: half a layer of one, then half a layer of the other.

A shared machine slows down by a fifth for seconds at a time. Prefills that follow each other are
affected differently; prefills in lockstep are affected equally.
"""

from __future__ import annotations

import copy
import ctypes
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import zip_longest
from statistics import median
from typing import NamedTuple

import torch
from greenlet import getcurrent, greenlet

import foveate
from foveate_lab.bench import Subject
from foveate_lab.bench.memory import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
from foveate_lab.bench.timing import Prefill, Tick, prefill, seconds, stock

M_TOP_PAD = -2  # glibc's name
WARM_UP = 4  # rounds


def keep_memory() -> None:
    """Make glibc keep freed memory, and give it plenty.

    How often glibc returns memory depends on earlier allocations; the page faults that follow took
    between a fiftieth and a tenth of the same stock prefill.
    """
    libc = ctypes.CDLL("libc.so.6")
    for option, value in (
        (M_TRIM_THRESHOLD, 2**31 - 1),
        (M_MMAP_THRESHOLD, 2**31 - 1),
        (M_TOP_PAD, 2**26),
    ):
        if not libc.mallopt(option, value):
            raise SystemExit(f"mallopt({option}, {value}) was refused: glibc is needed.")
    torch.ones(3 * 2**29, dtype=torch.uint8)  # touched, then freed


def prefills(
    subject: Subject,
    policies: Sequence[foveate.Policy],
    rounds: int,
    tick: Tick,
    warm_up: int = WARM_UP,
) -> dict[str, Prefill]:
    """Time every policy in lockstep with the stock prefill, on two copies of the model that share
    weights.

    A copy may be faster by a percent or two for its place in memory, and so may the one that starts
    first. Four rounds try all combinations, and warm up; without a warm-up, use four or eight
    rounds. Memory freed earlier affects a policy's place, so every round has another order.


    The added time is the sum over half layers of the median of the rounds: a slow second of the
    machine hits other halves in every round.
    """
    keep_memory()
    twins = (subject, _twin(subject))
    halves = [
        half for twin in twins for layer in twin.model.model.layers for half in (layer, layer.mlp)
    ]
    found: dict[str, list[Together]] = {policy.spec: [] for policy in policies}
    with ExitStack() as hooks:
        for half in halves:
            hooks.callback(half.register_forward_pre_hook(_pause).remove)
        for turn in range(warm_up + rounds):
            for policy in random.Random(turn).sample(policies, len(policies)):
                found[policy.spec].append(_beside_stock(twins, policy, turn))
                tick()
    return {spec: _middle(runs[warm_up:]) for spec, runs in found.items()}


class Together(NamedTuple):
    """Times of a lockstep run: seconds of stock half layers, added seconds of each, and of stages.

    ``stages`` is the total by the policy's own clock.
    """

    alone: list[float]
    added: list[float]
    stages: float


def _middle(runs: Sequence[Together]) -> Prefill:
    alone = sum(map(median, zip(*(run.alone for run in runs), strict=True)))
    added = sum(map(median, zip(*(run.added for run in runs), strict=True)))
    return Prefill(alone, 1 + added / alone, median(run.stages for run in runs))


def _beside_stock(twins: tuple[Subject, Subject], policy: foveate.Policy, turn: int) -> Together:
    under, plain = twins if turn % 2 == 0 else twins[::-1]
    stages: list[float] = []
    works = [lambda: stages.append(prefill(under, policy).stats.seconds), lambda: stock(plain)]
    under_policy, alone = _together(*works) if turn % 4 < 2 else _together(*works[::-1])[::-1]
    # a probe pass continues after the stock prefill has ended
    added = [a - b for a, b in zip_longest(under_policy, alone, fillvalue=0.0)]
    return Together(alone, added, stages[0])


def _together(first: Callable[[], object], second: Callable[[], object]) -> list[list[float]]:
    """Return seconds of each, in turns between pauses; the order of a turn alternates."""
    works, order = [greenlet(first), greenlet(second)], [0, 1]
    times: list[list[float]] = [[], []]
    while not all(work.dead for work in works):
        for i in order:
            if not works[i].dead:
                times[i].append(seconds(works[i].switch, torch.device("cpu")))
        order.reverse()
    return times


def _twin(subject: Subject) -> Subject:
    shared = [*subject.model.parameters(), *subject.model.buffers()]
    return replace(subject, model=copy.deepcopy(subject.model, {id(t): t for t in shared}))


def _pause(*_: object) -> None:
    """Switch to the other prefill."""
    getcurrent().parent.switch()
