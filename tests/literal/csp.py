"""CSP: attention within a modality and across modalities is ranked apart (eqs. 1 to 4 and 7)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .attention import top

Lists = list[tuple[list[int], list[int]]]
"""Of each head: the positions of the best by self score and by cross score, best first."""


def softmax_n(logits: list[float], n: float) -> list[float]:
    """Eq. 7: exp(o_i) / (n + sum of exp(o_j)), with the highest exponent taken out of both."""
    high = max(0.0, *logits)
    powers = [math.exp(o - high) for o in logits]
    below = n * math.exp(-high) + math.fsum(powers)
    return [power / below for power in powers]


def scores(
    q: Float[Tensor, "hq t d"],
    k: Float[Tensor, "h t d"],
    is_image: list[bool],
    O: int,  # noqa: E741
    R: int,
    n: float = 1,
) -> tuple[Float[Tensor, "h s"], Float[Tensor, "h s"]]:
    """Eq. 1 on A[-O:, :-R]: each key's sum over queries of its modality, and of the other one.

    Each key sums over the query axis, so text keys collect text queries in A^s and image queries in
    A^c. Per KV head: the mean over its query heads, where the paper averages over all heads
    (``head_mean``) and the release has one query head per KV head.
    """
    query_heads, tokens, width = q.shape
    heads = k.shape[0]
    group = query_heads // heads
    own = torch.zeros(heads, tokens - R, dtype=torch.float64)
    cross = torch.zeros(heads, tokens - R, dtype=torch.float64)
    for query_head in range(query_heads):
        head = query_head // group
        for i in range(tokens - O, tokens):
            logits = k[head, : i + 1].double() @ q[query_head, i].double() / math.sqrt(width)
            row = softmax_n(logits.tolist(), n)  # over all keys that it sees: R is cut off after
            for j in range(min(i + 1, tokens - R)):
                into = own if is_image[i] == is_image[j] else cross
                into[head, j] += row[j] / group
    return own, cross


def head_mean(scores: Float[Tensor, "h s"]) -> Float[Tensor, "1 s"]:
    """Section 3.2: "we average over the head axis". The mean of sums is the sum of the means."""
    return scores.mean(0, keepdim=True)


def lists(
    own: Float[Tensor, "h s"], cross: Float[Tensor, "h s"], k_self: int, k_cross: int
) -> Lists:
    """Eq. 2: the top K of each score, with the two K apart. A score of zero can be among them."""
    return [
        (top(a, k_self), top(b, k_cross)) for a, b in zip(own.tolist(), cross.tolist(), strict=True)
    ]


def intersection(lists: Lists) -> list[list[int]]:
    """Eq. 3: M = M^s and M^c."""
    return [sorted(set(a) & set(b)) for a, b in lists]


def union(lists: Lists) -> list[list[int]]:
    """What is in either list: the release's concatenation without its duplicates."""
    return [sorted(set(a) | set(b)) for a, b in lists]


def filled_union(
    own: Float[Tensor, "h s"], cross: Float[Tensor, "h s"], k_self: int, k_cross: int
) -> list[list[int]]:
    """The union, grown until no budget is lost to what both lists name.

    Not in the paper. Both lists get one more entry at a time until the union has ``k_self`` +
    ``k_cross`` members; where a step adds one too many, the earlier position stays. What scores
    zero in a list never enters by that list, so there are fewer where both lists run out.
    """
    wanted = k_self + k_cross
    chosen = []
    for a, b in zip(own.tolist(), cross.tolist(), strict=True):
        ranked_self = [i for i in top(a, len(a)) if a[i] > 0]
        ranked_cross = [i for i in top(b, len(b)) if b[i] > 0]
        members = set(ranked_self[:k_self]) | set(ranked_cross[:k_cross])
        step = 0
        while len(members) < wanted and step < len(a):
            fresh = {
                *ranked_self[k_self + step : k_self + step + 1],
                *ranked_cross[k_cross + step : k_cross + step + 1],
            } - members
            members |= set(sorted(fresh)[: wanted - len(members)])
            step += 1
        chosen.append(sorted(members))
    return chosen
