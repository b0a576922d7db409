"""The transcriptions taken apart, for policies that put parts of several papers together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.literal import mixkv, prefixkv
from tests.literal.attention import attention, top


def window_means(q: Tensor, k: Tensor, window: int) -> Tensor:
    """What the last queries pay on average to every token, [h, g, t]."""
    rows = attention(q, k)[:, -window:].mean(1)
    return rows.view(k.shape[0], -1, rows.shape[1])


def mixed(extrinsic: list[list[float]], k: Tensor, v: Tensor) -> Tensor:
    """MixKV's equations 2 to 5 over any importance, given for the first tokens or for all, which
    then are what minima, maxima and means are taken over.
    """
    redundancies = mixkv.redundancy(k).clamp_min(0).tolist()
    out = []
    for importance, keys, values, r in zip(
        extrinsic, k.double(), v.double(), redundancies, strict=True
    ):
        seen = len(importance)
        inner = mixkv.scaled([float(x.norm()) for x in values[:seen]], like=importance)
        unit = [key / key.norm() for key in keys]
        centre = torch.stack(unit).mean(0)
        apart = mixkv.scaled([-float(x @ centre) for x in unit[:seen]], like=importance)
        whole = zip(importance, inner, apart, strict=True)
        out.append([(1 - r) * (a + b) + r * c for a, b, c in whole])
    return torch.tensor(out, dtype=torch.float64)


def curve_as_kept(importance: Tensor, first: list[int]) -> Tensor:
    """PrefixKV's P of a layer, whose heads [h, t] keep ``first`` first, and then each its own best:
    the share that they hold together when each has kept o tokens.
    """
    shares = []
    for row in importance.tolist():
        rest = [i for i in top(row, len(row)) if i not in first]
        shares.append([row[i] for i in (*first, *rest)])
    whole = math.fsum(map(math.fsum, shares))
    ranked = [math.fsum(each) / whole for each in zip(*shares, strict=True)]
    return torch.tensor([math.fsum(ranked[: o + 1]) for o in range(len(ranked))])


def one_at_a_time(wish: list[int], least: int, most: int, total: int) -> list[int]:
    """From the wish to the total, token by token over the layers in turn."""
    counts = [min(max(w, least), most) for w in wish]
    step = 1 if sum(counts) < total else -1
    while sum(counts) != total:
        for layer, count in enumerate(counts):
            if least <= count + step <= most and sum(counts) != total:
                counts[layer] += step
    return counts


def prefix_counts(
    importances: list[Tensor], first: list[int], tokens: int, delta: float = 0, steps: int = 64
) -> list[int]:
    """PrefixKV's budgets of all layers, with an exact total."""
    depth, length = len(importances), importances[0].shape[-1]
    curves = [curve_as_kept(each, first) for each in importances]
    _, found = prefixkv.search(curves, tokens * depth, delta * length, steps)
    wish = [round(count) for count in prefixkv.scaled(found, tokens * depth)]
    return one_at_a_time(wish, len(first), length, tokens * depth)
