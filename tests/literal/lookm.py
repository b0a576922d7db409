"""LOOK-M: text first, and what is evicted is merged into the nearest kept key (eqs. 4 to 12)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .attention import attention, top


def importance(q: Float[Tensor, "hq t d"], k: Float[Tensor, "h t d"]) -> Float[Tensor, "h t"]:
    """Eq. 4: the sum over all queries; the mean over the query heads of a KV head."""
    rows = attention(q, k)
    query_heads, tokens, _ = rows.shape
    heads = k.shape[0]
    group = query_heads // heads
    total = torch.zeros(heads, tokens, dtype=torch.float64)
    for query_head in range(query_heads):
        for i in range(tokens):
            total[query_head // group] += rows[query_head, i] / group
    return total


def with_text_prior(A_s: Float[Tensor, "h t"], is_image: list[bool]) -> Float[Tensor, "h t"]:
    """Eq. 5: text gets the head's maximum on top, so that no image token is above any text."""
    out = A_s.clone()
    for head in range(A_s.shape[0]):
        T_p = max(A_s[head].tolist())
        for i, image in enumerate(is_image):
            if not image:
                out[head, i] += T_p
    return out


def kept(A_s: Float[Tensor, "h t"], N: int, M: int, sinks: int = 0) -> list[list[int]]:
    """Eqs. 6 to 8: the last M tokens, and the best N of those before them.

    ``sinks`` first tokens are among the N whatever they score, as in the variants of the release
    that have no text prior (4 there).
    """
    tokens = A_s.shape[1]
    out = []
    for row in A_s.tolist():
        before = [math.inf if i < sinks else row[i] for i in range(tokens - M)]
        out.append(sorted(top(before, N)) + list(range(tokens - M, tokens)))
    return out


def nearest(
    k: Float[Tensor, "h t d"], kept: list[list[int]]
) -> tuple[list[list[int]], list[list[float]]]:
    """Eq. 9: for each evicted key, in order of position, the slot of the kept key of the highest
    cosine (the earlier of equals), and that cosine.
    """
    slots, cosines = [], []
    for head in range(k.shape[0]):
        unit = [key / key.norm() for key in k[head].double()]
        head_slots, head_cosines = [], []
        for i in evicted(k.shape[1], kept[head]):
            s = [float(unit[i] @ unit[j]) for j in kept[head]]
            slot = top(s, 1)[0]
            head_slots.append(slot)
            head_cosines.append(s[slot])
        slots.append(head_slots)
        cosines.append(head_cosines)
    return slots, cosines


def evicted(tokens: int, kept: list[int]) -> list[int]:
    return [i for i in range(tokens) if i not in kept]


def passes(cosines: list[list[float]]) -> list[bool]:
    """The release's filter: of the e-th evicted key of every head, whichever positions those are,
    the mean cosine is not below the mean of all. Not in the paper.
    """
    heads, count = len(cosines), len(cosines[0])
    whole = math.fsum(math.fsum(row) for row in cosines) / (heads * count)
    return [math.fsum(row[e] for row in cosines) / heads >= whole for e in range(count)]


def merge(
    k: Float[Tensor, "h t d"],
    v: Float[Tensor, "h t d"],
    kept: list[list[int]],
    how: Literal["averaged", "pivotal", "weighted"] = "pivotal",
    similarity_filter: bool = False,
) -> tuple[Float[Tensor, "h s d"], Float[Tensor, "h s d"]]:
    """Eqs. 10 to 12 for the keys, and with the same matches and weights for the values.

    The sums run over the matched set, whose size is L_sim: from 0 to L_sim, as printed, they have
    one term too many. With ``similarity_filter`` what does not pass is evicted without a trace.
    """
    slots, cosines = nearest(k, kept)
    merged_k, merged_v = [], []
    for head in range(k.shape[0]):
        gone = evicted(k.shape[1], kept[head])
        allowed = passes(cosines) if similarity_filter else [True] * len(gone)
        for x, out in ((k[head].double(), merged_k), (v[head].double(), merged_v)):
            rows = []
            for slot, centre in enumerate(kept[head]):
                total, size = x[centre].clone(), 0
                for e, i in enumerate(gone):
                    if slots[head][e] != slot or not allowed[e]:
                        continue
                    if how == "averaged":
                        total += x[i]
                    elif how == "pivotal":
                        total += (x[i] + x[centre]) / 2
                    else:
                        total += x[i] * cosines[head][e]
                    size += 1
                rows.append(total / (size + 1))
            out.append(torch.stack(rows))
    return torch.stack(merged_k), torch.stack(merged_v)
