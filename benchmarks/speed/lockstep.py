"""Two prefills at once: half a layer of the one, then half a layer of the other.

A machine that others use as well slows down by a fifth for seconds at a time. Prefills that follow
each other meet different moments of it; prefills in lockstep meet the same.
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
    """From now on glibc gives no memory back to the system, and has plenty.

    How often it does depends on what was allocated before; the page faults that follow took between
    a fiftieth and a tenth of one and the same stock prefill.
    """
    libc = ctypes.CDLL("libc.so.6")
    for option, value in (
        (M_TRIM_THRESHOLD, 2**31 - 1),
        (M_MMAP_THRESHOLD, 2**31 - 1),
        (M_TOP_PAD, 2**26),
    ):
        if not libc.mallopt(option, value):
            raise SystemExit(f"mallopt({option}, {value}) was refused: glibc is needed.")
    torch.ones(3 * 2**29, dtype=torch.uint8)  # touched, and free again


def prefills(
    subject: Subject,
    policies: Sequence[foveate.Policy],
    rounds: int,
    tick: Tick,
    warm_up: int = WARM_UP,
) -> dict[str, Prefill]:
    """Every policy in lockstep with the stock prefill, on two copies of the model that share their
    weights. Either copy may be ahead by a percent or two for its place in memory, and so may the
    one that starts first: four rounds try all ways, and warm up; where there is no warm-up, take
    four or eight. What was freed before decides on a policy's place, so every round has another
    order.

    What is added is the sum over half layers, of each the median of the rounds: what slows the
    machine down for a second meets other halves in every round.
    """
    keep_memory()
    twins = (subject, _twin(subject))
    halves = [
        half for one in twins for layer in one.model.model.layers for half in (layer, layer.mlp)
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
    """Seconds of the stock prefill's half layers, what the policy adds to each, and what its stages
    take in all by their own clock.
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
    whole, alone = _together(*works) if turn % 4 < 2 else _together(*works[::-1])[::-1]
    # what reads the prompt again goes on where the stock prefill has ended
    added = [with_it - without for with_it, without in zip_longest(whole, alone, fillvalue=0.0)]
    return Together(alone, added, stages[0])


def _together(first: Callable[[], object], second: Callable[[], object]) -> list[list[float]]:
    """Seconds of each, in turns from pause to pause; who begins a turn changes every time."""
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
    """Lets the other go on."""
    getcurrent().parent.switch()
