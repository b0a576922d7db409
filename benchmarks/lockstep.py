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

import torch
from greenlet import getcurrent, greenlet

import foveate
from foveate.bench import Subject
from foveate.bench.memory import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
from foveate.bench.timing import Prefill, Tick, medians, prefill, seconds, stock

M_TOP_PAD = -2  # glibc's name


def keep_memory() -> None:
    """From now on glibc gives no memory back to the system.

    How often it does depends on what was allocated before; the page faults that follow took between
    a fiftieth and a tenth of one and the same stock prefill.
    """
    libc = ctypes.CDLL("libc.so.6")
    for option, value in ((M_TRIM_THRESHOLD, 2**31 - 1), (M_MMAP_THRESHOLD, 2**31 - 1),
                          (M_TOP_PAD, 2**26)):  # fmt: skip
        if not libc.mallopt(option, value):
            raise SystemExit(f"mallopt({option}, {value}) was refused: glibc is needed.")


def prefills(
    subject: Subject, policies: Sequence[foveate.Policy], rounds: int, tick: Tick
) -> dict[str, Prefill]:
    """Every policy in lockstep with the stock prefill, on two copies of the model that share their
    weights; the medians of all rounds but the first. Either copy may be ahead by a percent or two
    for its place in memory, and so may the one that starts first: four rounds try all ways. What
    was freed before decides on a policy's place, so every round has another order.
    """
    keep_memory()
    twins = (subject, _twin(subject))
    halves = [half for one in twins for layer in one.model.model.layers
              for half in (layer, layer.mlp)]  # fmt: skip
    found: dict[str, list[Prefill]] = {policy.spec: [] for policy in policies}
    with ExitStack() as hooks:
        for half in halves:
            hooks.callback(half.register_forward_pre_hook(_pause).remove)
        for turn in range(rounds + 1):
            for policy in random.Random(turn).sample(policies, len(policies)):
                found[policy.spec].append(_beside_stock(twins, policy, turn))
                tick()
    return {spec: medians(runs[1:]) for spec, runs in found.items()}


def _beside_stock(twins: tuple[Subject, Subject], policy: foveate.Policy, turn: int) -> Prefill:
    under, plain = twins if turn % 2 == 0 else twins[::-1]
    stages: list[float] = []
    works = [lambda: stages.append(prefill(under, policy).stats.seconds), lambda: stock(plain)]
    whole, alone = _together(*works) if turn % 4 < 2 else _together(*works[::-1])[::-1]
    return Prefill(alone, whole / alone, stages[0])


def _together(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, ...]:
    """Seconds of each, in turns from pause to pause; who begins a turn changes every time."""
    works, times = [greenlet(first), greenlet(second)], [0.0, 0.0]
    order = [0, 1]
    while not all(work.dead for work in works):
        for i in order:
            if not works[i].dead:
                times[i] += seconds(works[i].switch, torch.device("cpu"))
        order.reverse()
    return tuple(times)


def _twin(subject: Subject) -> Subject:
    shared = [*subject.model.parameters(), *subject.model.buffers()]
    return replace(subject, model=copy.deepcopy(subject.model, {id(t): t for t in shared}))


def _pause(*_: object) -> None:
    """Lets the other go on."""
    getcurrent().parent.switch()
