"""PrefixKV's curves of cumulative importance, and the search for the share that meets a budget.

Source: PrefixKV (arXiv:2412.03409), sections 3.2 and 3.3, in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.core.layer import Scored
from foveate.stages.score.normalise import over_tokens

STEPS = 64  # halvings of [0, 1] after which p is as exact as its number can be


def priority(one: Scored) -> Float[Tensor, "b n"]:
    """Section 3.2: P_l, the share of a layer's importance held by its first o tokens, o = 1 ... n.

    Where every head has a ranking of its own, it is the share when each keeps its first o.
    """
    order = one.scores.values.argsort(dim=-1, descending=True, stable=True)
    importance = (
        over_tokens(one.layer.slots).lifted(one.importance).masked_fill(~one.layer.valid, 0.0)
    )
    ranked = importance.double().gather(-1, order).mean(1)
    total = ranked.sum(-1, keepdim=True)
    equal = torch.ones_like(ranked)  # nothing received anything: no token matters more
    ranked = torch.where(total > 0, ranked, equal)
    return ranked.cumsum(-1) / ranked.sum(-1, keepdim=True)


def gini(curve: Float[Tensor, "*x n"]) -> Float[Tensor, "*x"]:
    """Section 3.2: twice the area between the Lorenz curve and the line of equality. 0: all tokens
    matter alike; towards 1: one token holds everything.
    """
    n = curve.shape[-1]
    before = torch.nn.functional.pad(curve, (1, 0))[..., :-1]
    return (curve + before).sum(-1) / n - 1


class Found(NamedTuple):
    """The share p, the tokens that each layer needs to hold it, and the steps it took."""

    p: float
    tokens: Int[Tensor, "L"]
    steps: int


def search(
    curves: Float[Tensor, "L n"], total: int, *, tolerance: float = 0.0, steps: int = STEPS
) -> Found:
    """Algorithm 1: the p at which the layers' prefixes, min{o : P_l(o) >= p}, add up to ``total``,
    or miss it by no more than ``tolerance`` tokens; the nearest one that so many halvings reach.
    """
    low, high = 0.0, 1.0
    for step in range(1, steps + 1):  # noqa: B007 (the number of steps is a result)
        p = (low + high) / 2
        tokens = _prefixes(curves, p)
        difference = int(tokens.sum()) - total
        if abs(difference) <= tolerance:
            break
        low, high = (p, high) if difference < 0 else (low, p)
    return Found(p, tokens, step)


def _prefixes(curves: Float[Tensor, "L n"], p: float) -> Int[Tensor, "L"]:
    """min{o : P_l(o) >= p} of every layer."""
    wanted = torch.full((len(curves), 1), p, dtype=curves.dtype, device=curves.device)
    return torch.searchsorted(curves, wanted)[:, 0].add(1).clamp_max(curves.shape[1])


def scaled(tokens: Int[Tensor, "L"], total: int) -> Int[Tensor, "L"]:
    """Section 3.3: what a search that stopped short of its aim has found, scaled to it."""
    return (tokens.double() * total / int(tokens.sum())).round().to(tokens.dtype)
