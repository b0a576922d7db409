"""Exact totals: counts near a rule's wishes that add up to the budget."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.cache.slots import Slots, derived
from foveate.stages.recent import budget_of


def fill(
    wish: Int[Tensor, "x"], least: Int[Tensor, "x"], limit: Int[Tensor, "x"], total: int
) -> Int[Tensor, "x"]:
    """Return counts near ``wish``, between ``least`` and ``limit``, that add up to ``total``.

    The difference is spread evenly over the entries that still have room; the remainder goes to the
    earlier ones. If ``total`` is out of reach, the nearest reachable total is met.
    """
    return wish.new_tensor(filled(wish.tolist(), least.tolist(), limit.tolist(), total))


def filled(wish: list[int], lows: list[int], highs: list[int], total: int) -> list[int]:
    """Compute :func:`fill` on lists of plain numbers."""
    limits = zip(wish, lows, highs, strict=True)
    counts = [min(max(count, low), high) for count, low, high in limits]
    total = min(max(total, sum(lows)), sum(highs))
    while (missing := total - sum(counts)) != 0:
        ends, sign = (highs, 1) if missing > 0 else (lows, -1)
        room = [sign * (end - count) for end, count in zip(ends, counts, strict=True)]
        indices = [index for index, left in enumerate(room) if left > 0]
        # the loop ends: each round fills an entry, or spreads all but a remainder smaller than the
        # number of open entries, which the next round hands out one by one
        share, remainder = divmod(abs(missing), len(indices))
        for index in indices if share else indices[:remainder]:
            counts[index] += sign * min(max(1, share), room[index])
    return counts


def within(
    scored_layer: Scored, wish: Int[Tensor, "b h"], totals: Int[Tensor, "b"]
) -> Int[Tensor, "b h"]:
    """Return counts near the wishes for one layer's heads, with the exact total of each row."""
    of_rows = (t.tolist() for t in (wish, scored_layer.protected, scored_layer.available, totals))
    return wish.new_tensor([filled(*row) for row in zip(*of_rows, strict=True)])


def heads_of(scored_layer: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
    """Return the same count for every head of a layer.

    A head with fewer pairs passes the surplus on to the others.
    """
    slots = scored_layer.layer.slots
    if slots.tokens is tokens:
        wish, fits = _even(slots)
    else:
        wish, fits = _shared_evenly(scored_layer.available, tokens)
    return wish if fits else within(scored_layer, wish, wish.sum(-1))


@derived
def _even(slots: Slots) -> tuple[Tensor, bool]:
    return _shared_evenly(slots.available, budget_of(slots, 1))


def _shared_evenly(
    available: Int[Tensor, "b h"], tokens: Int[Tensor, "b"]
) -> tuple[Int[Tensor, "b h"], bool]:
    """Return the same count for every head, and True if all heads have that many pairs."""
    wish = tokens[:, None].expand_as(available).clone()
    return wish, bool((available >= wish).all())


def proportional(
    weights: Float[Tensor, "x"], least: Int[Tensor, "x"], limit: Int[Tensor, "x"], total: int
) -> Int[Tensor, "x"]:
    """Return counts that add up to ``total``: ``least``, plus a share of the rest by weight.

    An entry whose share exceeds ``limit`` passes the excess on to the others, by their weights.
    """
    room = (limit - least).double()
    rest, allotted = float(total - int(least.sum())), torch.zeros_like(room)
    is_open = (room > 0) & (weights > 0)
    # less than half a pair rounds to none: fill() meets the exact total
    while rest > 0.5 and bool(is_open.any()):
        share = torch.where(is_open, weights.double(), 0.0)
        step = torch.minimum(rest * share / share.sum(), room - allotted)
        allotted, rest = allotted + step, rest - float(step.sum())
        is_open = is_open & (room - allotted > 1e-9)  # full, but for the sums' rounding
    return fill(least + allotted.round().to(least.dtype), least, limit, total)


def by_layer(
    scored: Sequence[Scored], wishes: Int[Tensor, "b L"], tokens: Int[Tensor, "b"]
) -> list[Int[Tensor, "b h"]]:
    """Return counts near each row's wishes for layers, with the exact total of ``tokens``.

    ``tokens`` is per KV head.

    The heads of a layer keep the same number, unless some do not have that many pairs.
    """
    rows = [_row(scored, row, wishes[row], int(t)) for row, t in enumerate(tokens.tolist())]
    return [torch.stack([row[layer] for row in rows]) for layer in range(len(scored))]


def _row(
    scored: Sequence[Scored], row: int, wish: Int[Tensor, "L"], tokens: int
) -> list[Int[Tensor, "h"]]:
    # on the CPU, since layers may be on several devices
    available = [scored_layer.available[row].cpu() for scored_layer in scored]
    protected = [scored_layer.protected[row].cpu() for scored_layer in scored]
    # equal heads keep no more than the shortest one has, and no less than the most protected one
    limit = torch.stack([a.min() for a in available])
    least = torch.minimum(torch.stack([p.max() for p in protected]), limit)
    layers = fill(wish.cpu(), least, limit, tokens * len(scored))
    sizes = [len(a) for a in available]
    heads = torch.cat([t.expand(size) for t, size in zip(layers, sizes, strict=True)])
    exact = fill(heads, torch.cat(protected), torch.cat(available), tokens * sum(sizes))
    parts = torch.split(exact, sizes)
    return [
        part.to(scored_layer.layer.k.device)
        for part, scored_layer in zip(parts, scored, strict=True)
    ]
