"""PyramidKV: SnapKV with more tokens in the early layers, where attention is spread out.

Departs from the authors' code in the total, which is exact: the release rounds the step between
layers down and keeps more: in 32 layers up to 15.5 tokens a layer, 11 % at a budget of 128 with a
window of 32. And in what prompts shorter than twice the budget get: the release shares it out
evenly there, here the line goes on, from a first layer that is full. Both are the release's under
``as_released``. One kept set per KV head.
"""

from __future__ import annotations

from dataclasses import field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import torch

from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Kernel, Positive, Window
from foveate.policies.protocols import Scope
from foveate.stages import Pool, Reduction, TopK, WindowAttention
from foveate.stages.budget.bases import ByLength
from foveate.stages.budget.exact import fill


@stage("pyramid")
class Pyramid(ByLength):
    """Layers keep numbers on a falling line, beside what is protected; a layer's heads the same.

    The last layer keeps a ``beta``-th of the average, the first the rest of twice the average, at
    most the whole prompt: what a full layer does not need goes to the others. The counts add up to
    the budget, so the line is rounded to it. With ``as_released`` its step is rounded down, as in
    the authors' code, which keeps up to (layers - 1) / 2 tokens a layer more than was asked for,
    and prompts shorter than twice the average are shared out evenly.

    Source: PyramidKV (arXiv:2406.02069), section 4.2 and the release.
    """

    beta: Positive = 20
    as_released: bool = False
    scope: Scope = field(default="layer", init=False)

    def by_length(self, depth: int) -> Line:
        """The line over that many layers."""
        return Line(depth, self.beta, self.as_released)


class Line(NamedTuple):
    """``line`` with what is protected, which every layer keeps beside its place on it."""

    layers: int
    beta: int
    as_released: bool

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Tokens of each layer, of a prompt of ``length``, ``tokens`` on average."""
        places = line(tokens - protected, length - protected, *self)
        return tuple(place + protected for place in places)


@lru_cache(maxsize=256)
def line(base: int, room: int, layers: int, beta: int, as_released: bool) -> tuple[int, ...]:
    """Tokens of each layer, ``base`` on average and at most ``room``."""
    if layers == 1 or base >= room or (as_released and room < 2 * base):
        return (min(base, room),) * layers
    last = base // beta
    if (first := 2 * base - last) >= room:
        first, last = room, 2 * base - room
    if as_released:
        step = (first - last) // (layers - 1)
        return tuple(first - place * step for place in range(layers))
    fall = Fraction(first - last, layers - 1)
    wished = [round(first - place * fall) for place in range(layers)]
    wish = torch.tensor(wished, dtype=torch.long, device="cpu")
    exact = fill(wish, torch.zeros_like(wish), torch.full_like(wish, room), base * layers)
    return tuple(exact.tolist())


@method("cai2025pyramidkv", adds=("budget",))
def pyramidkv(
    *,
    budget: Amount,
    beta: Positive = 20,
    as_released: bool = False,
    window: Window = 8,
    kernel: Kernel = 7,
    pool: Pool = "max",
    group: Reduction = "mean",
) -> Policy:
    """Keeps what the last queries attend to, more in early layers and less in late ones.

    The last layer keeps a ``beta``-th of the average.

    Args:
        beta: The last layer keeps one in so many of the average.

    Defaults:
        release (KVCache-Factory)
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=Pyramid(amount=budget, beta=beta, as_released=as_released),
        select=TopK(recent=window),
    )
