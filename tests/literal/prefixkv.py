"""PrefixKV: every layer keeps the shortest prefix that holds the same share of importance.

Departures of the release, which its recorded outputs contain, are parameters here: it protects
the first and the last token on top of the prefix, and stops within 4 tokens of the budget.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from .attention import attention, top

STEPS = 64


def importance(q: Float[Tensor, "hq t d"], k: Float[Tensor, "h t d"]) -> Float[Tensor, " t"]:
    """I^n of section 3.2: what token n receives from all queries, averaged over all heads."""
    rows = attention(q, k)
    heads, tokens, _ = rows.shape
    total = torch.zeros(tokens, dtype=torch.float64)
    for head in range(heads):
        for m in range(tokens):
            total += rows[head, m]
    return total / heads


def curve(importance: Float[Tensor, " t"]) -> Float[Tensor, " t"]:
    """P^o of section 3.2 at o = 1/N, 2/N, ..., 1: the share of the o N most important tokens."""
    whole = math.fsum(importance.tolist())
    shares = sorted((x / whole for x in importance.tolist()), reverse=True)
    return torch.tensor(
        [math.fsum(shares[: o + 1]) for o in range(len(shares))], dtype=torch.float64
    )


def prefix(curve: Float[Tensor, " t"], p: float) -> int:
    """R = min{o | P^o >= p}, in tokens. Never less than one; all, where rounding hides P^1 = 1."""
    for o, share in enumerate(curve.tolist(), start=1):
        if share >= p:
            return o
    return len(curve)


def search(
    curves: list[Float[Tensor, " t"]], total_tokens: int, tolerance: float = 0, steps: int = STEPS
) -> tuple[float, list[int]]:
    """Algorithm 1, in tokens rather than ratios: p, and the prefix that it gives each layer.

    The algorithm has no end where no p meets the budget exactly; after 64 halvings this returns the
    last p tried, which may miss the budget on either side. ``tolerance`` is the "small threshold
    for delta", in tokens of all layers together; Table 11 stops after so many ``steps``.
    """
    p1, p2 = 0.0, 1.0
    for _ in range(steps):
        p = (p1 + p2) / 2
        counts = [prefix(curve, p) for curve in curves]
        delta = sum(counts) - total_tokens
        if abs(delta) <= tolerance:
            break
        if delta < 0:
            p1 = p
        else:
            p2 = p
    return p, counts


def scaled(counts: list[int], total_tokens: int) -> list[float]:
    """ "Scale the resulting global prefix configuration to meet the target budget", unrounded."""
    return [count * total_tokens / sum(counts) for count in counts]


def kept(importance: Float[Tensor, " t"], count: int) -> list[int]:
    """The first token, the last, and the most important ``count`` - 2 between them."""
    tokens = len(importance)
    between = top(importance.tolist()[1:-1], count - 2)
    return [0, *sorted(i + 1 for i in between), tokens - 1]


def area(importance: Float[Tensor, " t"]) -> float:
    """Between the equality line and the Lorenz curve of Fig. 2, by trapezoids: within [0, 1/2)."""
    shares = [0.0, *curve(importance).tolist()]
    steps = len(shares) - 1
    under = math.fsum((shares[o] + shares[o + 1]) / 2 / steps for o in range(steps))
    return under - 1 / 2


def gini(importance: Float[Tensor, " t"]) -> float:
    """The Gini coefficient of the works that section 3.2 cites: ``area`` over the area of one half.

    The paper's sentence defines the area itself, and prints none of its numbers in the text.
    """
    return area(importance) / (1 / 2)


def ratio(tokens: int, kept_len: int, exact: bool) -> Fraction | float:
    """Of tokens kept. The release holds the ratio of tokens forgotten, hence the subtraction.

    Where a ratio of the length is a whole number of tokens, the rounding of that subtraction
    decides whether a token is dropped one step earlier or later; ``exact`` is without rounding.
    """
    if exact:
        return Fraction(kept_len, tokens)
    return 1 - (tokens - kept_len) / tokens


def decode_lengths(tokens: int, kept_len: int, steps: int, *, exact: bool = False) -> list[int]:
    """A layer's length after prefill and after each decoded token.

    Every step appends a token, and drops one when what is above the ratio makes a whole token.
    """
    share = ratio(tokens, kept_len, exact)
    lengths = [kept_len]
    for step in range(1, steps + 1):
        length, seen = lengths[-1] + 1, tokens + step
        if int(length - seen * share) > 0:
            length -= 1
        lengths.append(length)
    return lengths


def decode_slot(kept_len: int, distance: int = 25) -> int:
    """The cache slot that is dropped from, fixed at the length after prefill."""
    slot = kept_len - distance
    return slot if slot >= 1 else kept_len // 2


def decode_positions(tokens: int, kept: list[int], steps: int, *, exact: bool = False) -> list[int]:
    """The positions in a layer's cache after ``steps`` decoded tokens."""
    lengths = decode_lengths(tokens, len(kept), steps, exact=exact)
    slot = decode_slot(len(kept))
    positions = list(kept)
    for step in range(1, steps + 1):
        positions.append(tokens + step - 1)
        if len(positions) > lengths[step]:
            del positions[slot]
    return positions


def merge(
    x: Float[Tensor, "h t d"],
    kept: list[int],
    by: Literal["position", "feature"],
    keys: Float[Tensor, "h t d"],
) -> Float[Tensor, "h s d"]:
    """Section 4.3, "Eviction or merging": the average of a kept vector and those that match it.

    ``x`` is the keys or the values; the keys decide for both. Every pruned vector m goes to the n
    that maximises c^mn = -abs(m - n) or the cosine of the two keys; of equals, to the earlier.
    """
    heads, tokens, _ = x.shape
    x, keys = x.double(), keys.double()
    merged = []
    for head in range(heads):
        unit = [key / key.norm() for key in keys[head]]
        matched: dict[int, list[int]] = {n: [n] for n in kept}
        for m in range(tokens):
            if m in kept:
                continue
            if by == "position":
                matching = [-float(abs(m - n)) for n in kept]
            else:
                matching = [float(unit[m] @ unit[n]) for n in kept]
            matched[kept[top(matching, 1)[0]]].append(m)
        merged.append(torch.stack([x[head, matched[n]].mean(0) for n in kept]))
    return torch.stack(merged)
