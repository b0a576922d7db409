"""MixKV: importance and diversity, mixed by each head's redundancy (eqs. 2 to 5, Algorithm 1).

The paper says epsilon without a value: it is 1e-8 here, in every denominator that has one.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .attention import attention, top

EPSILON = 1e-8


def redundancy(k: Float[Tensor, "h t d"]) -> Float[Tensor, " h"]:
    """Eq. 4 by its definition: the mean cosine of all pairs of different keys. Not clamped."""
    heads, tokens, _ = k.shape
    found = []
    for head in range(heads):
        unit = [key / key.norm() for key in k[head].double()]
        total = 0.0
        for i in range(tokens):
            for j in range(i):
                total += 2 * float(unit[i] @ unit[j])  # (i, j) and (j, i)
        found.append(total / (tokens * (tokens - 1)))
    return torch.tensor(found, dtype=torch.float64)


def mean(numbers: list[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def minmax(numbers: list[float]) -> list[float]:
    """To [0, 1], as in section 3.3."""
    low, high = min(numbers), max(numbers)
    return [(x - low) / (high - low + EPSILON) for x in numbers]


def scaled(numbers: list[float], like: list[float]) -> list[float]:
    """Normalised, then brought to the mean of ``like``: s_norm * mean(like) / (mean(s_norm) + e)"""
    normal = minmax(numbers)
    factor = mean(like) / (mean(normal) + EPSILON)
    return [x * factor for x in normal]


def average_pool(numbers: list[float], kernel: int) -> list[float]:
    """Over ``kernel`` neighbours; beyond the ends are zeros, which count."""
    reach = kernel // 2
    return [
        math.fsum(numbers[max(0, i - reach) : i + reach + 1]) / kernel for i in range(len(numbers))
    ]


def scores(
    q: Float[Tensor, "hq t d"],
    k: Float[Tensor, "h t d"],
    v: Float[Tensor, "h t d"],
    window: int,
    *,
    kernel: int = 5,
    pooled: bool = True,
    intrinsic: Literal["value", "key"] | None = "value",
    mix: Literal["headwise", "sum", "importance", "diversity"] = "headwise",
    diversity_scale: Literal["extrinsic", "importance"] = "extrinsic",
    normalise_over: Literal["prefix", "all"] = "prefix",
    table: list[float] | None = None,
    clamped: bool = True,
) -> Float[Tensor, "h s"]:
    """Eq. 5, for the tokens before the window.

    Args:
        q: Of the whole prompt, as ``k`` and ``v``.
        k: After RoPE.
        v: Of the whole prompt.
        window: The last queries, whose attention is the extrinsic importance.
        kernel: Of the average pooling.
        pooled: The release pools the extrinsic importance, the paper's equations do not.
        intrinsic: The norm of the values, minus the norm of the keys, or none of the two.
        mix: Eq. 5; the plain sum, importance alone and diversity alone are rows of Table 4.
        diversity_scale: Diversity is brought to the mean of the extrinsic importance (the release)
            or of the whole importance (section 3.3).
        normalise_over: Minima, maxima, means and pooling see the tokens before the window (the
            release) or all (Algorithm 1). The mean key is that of all tokens either way.
        table: Each head's redundancy, measured beforehand.
        clamped: The redundancy is not below zero; eq. 4 as printed can be.
    """
    heads, tokens, _ = k.shape
    group = q.shape[0] // heads
    rows = attention(q, k)
    seen = tokens if normalise_over == "all" else tokens - window
    measured = redundancy(k).tolist() if table is None else table
    out = []
    for head in range(heads):
        # s_imp^ex: mean over the window's queries, and over the query heads of the group
        extrinsic = [0.0] * seen
        for query_head in range(head * group, (head + 1) * group):
            for j in range(tokens - window, tokens):
                for i in range(seen):
                    extrinsic[i] += float(rows[query_head, j, i]) / window / group
        if pooled:
            extrinsic = average_pool(extrinsic, kernel)

        # s_imp^in, and eq. 2
        if intrinsic is None:
            importance = extrinsic
        else:
            if intrinsic == "value":
                norms = [float(v[head, i].double().norm()) for i in range(seen)]
            else:
                norms = [-float(k[head, i].double().norm()) for i in range(seen)]
            inner = scaled(norms, like=extrinsic)
            importance = [a + b for a, b in zip(extrinsic, inner, strict=True)]

        # s_div: minus the product with the mean of the normalised keys
        unit = [key / key.norm() for key in k[head].double()]
        centre = torch.stack(unit).mean(0)
        apart = [-float(unit[i] @ centre) for i in range(seen)]
        like = extrinsic if diversity_scale == "extrinsic" else importance
        diversity = scaled(apart, like=like)

        r = max(0.0, measured[head]) if clamped else measured[head]
        if mix == "headwise":
            mixed = [(1 - r) * a + r * b for a, b in zip(importance, diversity, strict=True)]
        elif mix == "sum":
            mixed = [a + b for a, b in zip(importance, diversity, strict=True)]
        elif mix == "importance":
            mixed = importance
        else:
            mixed = diversity
        out.append(mixed[: tokens - window])
    return torch.tensor(out, dtype=torch.float64)


def kept(scores: Float[Tensor, "h s"], tokens: int, window: int, budget: int) -> list[list[int]]:
    """Algorithm 1, lines 3 and 12: the window and the best ``budget`` - ``window`` before it."""
    recent = list(range(tokens - window, tokens))
    return [sorted(top(row, budget - window)) + recent for row in scores.tolist()]
