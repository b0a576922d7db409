"""DAVID: text and vision are ranked apart, up to the layer where they have fused (eqs. 1 to 7).

No code was released. The recorded outputs are another literal reading of the same equations, so
they confirm the reading, not the authors' program.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .attention import attention, top


def scores(q: Float[Tensor, "hq t d"], k: Float[Tensor, "h t d"], r: int) -> Float[Tensor, "h t"]:
    """Eq. 2: the sum over the last ``r`` queries; the mean over the query heads of a KV head.

    All keys have one, the recent ones too, which only some of the queries see.
    """
    rows = attention(q, k)
    query_heads, tokens, _ = rows.shape
    heads = k.shape[0]
    group = query_heads // heads
    total = torch.zeros(heads, tokens, dtype=torch.float64)
    for query_head in range(query_heads):
        for j in range(tokens - r, tokens):
            total[query_head // group] += rows[query_head, j] / group
    return total


def pooled(scores: Float[Tensor, "h t"], kernel: int = 5) -> Float[Tensor, "h t"]:
    """Line 14: the maximum of ``kernel`` neighbours, over all keys.

    Of any modality, since lines 26 and 27 mask after it, and recent ones too, since nothing takes
    them out before. The paper names no kernel.
    """
    reach = kernel // 2
    return torch.tensor(
        [
            [max(row[max(0, i - reach) : i + reach + 1]) for i in range(len(row))]
            for row in scores.tolist()
        ],
        dtype=torch.float64,
    )


def ncar(
    q: Float[Tensor, "hq t d"], k: Float[Tensor, "h t d"], is_image: list[bool], r: int
) -> float:
    """Eq. 6 for every query head, n / (n^V r) times the attention of the last r queries to vision
    tokens, and the mean over heads of line 17 of Algorithm 1 (whose line 16 has no 1/r).
    """
    rows = attention(q, k)
    heads, tokens, _ = rows.shape
    vision = [j for j in range(tokens) if is_image[j]]
    thetas = []
    for head in range(heads):
        total = 0.0
        for i in range(tokens - r, tokens):
            for j in vision:
                total += float(rows[head, i, j])
        thetas.append(tokens / (len(vision) * r) * total)
    return math.fsum(thetas) / heads


def decoupled_flags(
    thetas: list[float],
    threshold: float,
    rule: Literal["delta_below", "delta_above", "theta_below"] = "delta_below",
) -> list[bool]:
    """Lines 4 to 22: which layers evict decoupled. Once off, off for good; theta_0 = 1.

    Decoupling ends where theta fell by less than the threshold (line 19), by more ("abrupt drops",
    in the prose), or where theta itself is below it (Fig. 2).
    """
    flag, before, flags = True, 1.0, []
    for theta in thetas:
        if flag:
            delta = before - theta
            if rule == "delta_below":
                over = delta < threshold
            elif rule == "delta_above":
                over = delta > threshold
            else:
                over = theta < threshold
            if over:
                flag = False
        before = theta
        flags.append(flag)
    return flags


def kept(
    pooled: Float[Tensor, "h t"],
    is_image: list[bool],
    r: int,
    B_s: int,
    rho: float,
    decoupled: bool,
    split: Literal["text", "algorithm"] = "text",
) -> list[list[int]]:
    """Lines 23 to 34: the recent ``r`` tokens, and ``B_s`` of those before them.

    Decoupled, vision gets floor(B_s rho / (1 + rho)), from rho = B^V / B^T of the text, or
    floor(B_s / (1 + rho)), as line 28 has it; text gets the rest. What one modality has no
    candidates for goes to the other, which the paper does not consider.
    """
    tokens = pooled.shape[1]
    before = range(tokens - r)
    recent = list(range(tokens - r, tokens))
    out = []
    for row in pooled.tolist():

        def best(candidates: list[int], count: int, row: list[float] = row) -> list[int]:
            return [candidates[i] for i in top([row[j] for j in candidates], count)]

        if decoupled:
            vision = [i for i in before if is_image[i]]
            text = [i for i in before if not is_image[i]]
            parts = B_s * rho if split == "text" else B_s
            quota_vision = math.floor(parts / (1 + rho))
            quota_text = B_s - quota_vision
            spilt_by_vision = max(0, quota_vision - len(vision))
            spilt_by_text = max(0, quota_text - len(text))
            chosen = best(vision, quota_vision + spilt_by_text)
            chosen += best(text, quota_text + spilt_by_vision)
        else:
            chosen = best(list(before), B_s)
        out.append(sorted(chosen) + recent)
    return out
