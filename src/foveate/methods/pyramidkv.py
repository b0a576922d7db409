"""PyramidKV: SnapKV with more tokens in the early layers, where attention is spread out.

Differences from the authors' code, which ``as_released`` restores:

* The total is exact. The release rounds the step between layers down and keeps more: in 32 layers
  up to 15.5 tokens a layer, 11 % at a budget of 128 with a window of 32.
* Prompts shorter than twice the budget follow the line, from a first layer that is full; the
  release shares the budget out evenly there.

There is one kept set per KV head.
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
from foveate.stages.budget.exact_totals import fill


@stage("pyramid")
class Pyramid(ByLength):
    """Budget that falls linearly from the first layer to the last, equal for a layer's heads.

    It counts tokens beside the protected ones. The last layer keeps a ``beta``-th of the average,
    the first the rest of twice the average, at most the whole prompt; the surplus of a full layer
    goes to the others. The counts are rounded so that they add up to the budget. With
    ``as_released`` the step is rounded down, as in the authors' code, which keeps up to (layers -
    1) / 2 tokens a layer more than the budget, and prompts shorter than twice the average are
    shared out evenly.

    Source: PyramidKV (arXiv:2406.02069), section 4.2 and the release.
    """

    beta: Positive = 20
    as_released: bool = False
    scope: Scope = field(default="layer", init=False)

    def by_length(self, depth: int) -> Line:
        """Return the line over ``depth`` layers."""
        return Line(depth, self.beta, self.as_released)


class Line(NamedTuple):
    """Rule of :class:`Pyramid`: ``line`` plus the protected tokens of every layer; hashable."""

    layers: int
    beta: int
    as_released: bool

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Return each layer's tokens for a prompt of ``length``, ``tokens`` on average."""
        counts = line(tokens - protected, length - protected, *self)
        return tuple(count + protected for count in counts)


@lru_cache(maxsize=256)
def line(base: int, room: int, layers: int, beta: int, as_released: bool) -> tuple[int, ...]:
    """Return each layer's tokens, ``base`` on average and at most ``room``."""
    if layers == 1 or base >= room or (as_released and room < 2 * base):
        return (min(base, room),) * layers
    last = base // beta
    if (first := 2 * base - last) >= room:
        first, last = room, 2 * base - room
    if as_released:
        step = (first - last) // (layers - 1)
        return tuple(first - layer * step for layer in range(layers))
    fall = Fraction(first - last, layers - 1)
    wished = [round(first - layer * fall) for layer in range(layers)]
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
    """Tokens that the last queries attend to, more in early layers and fewer in late ones.

    The last layer keeps a ``beta``-th of the average (section 4.2).

    Args:
        beta: Divisor of the average that gives the last layer's budget, e.g. 20.

    Defaults:
        release (KVCache-Factory)
    """
    return Policy(
        score=WindowAttention(window=window, kernel=kernel, pool=pool, group=group),
        budget=Pyramid(amount=budget, beta=beta, as_released=as_released),
        select=TopK(recent=window),
    )
