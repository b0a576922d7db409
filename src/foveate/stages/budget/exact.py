"""Exact totals: whatever a rule wishes, the counts add up to the budget."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.cache.slots import Slots, derived
from foveate.stages.recent import budget_of


def fill(
    wish: Int[Tensor, "x"], least: Int[Tensor, "x"], most: Int[Tensor, "x"], total: int
) -> Int[Tensor, "x"]:
    """Counts near ``wish``, between ``least`` and ``most``, that add up to ``total``.

    What is missing or too much is spread evenly over the places that still have room, the remainder
    going to the earlier ones. If ``total`` is out of reach the nearest reachable total is met.
    """
    return wish.new_tensor(filled(wish.tolist(), least.tolist(), most.tolist(), total))


def filled(wish: list[int], lows: list[int], highs: list[int], total: int) -> list[int]:
    """The same, of plain numbers."""
    limits = zip(wish, lows, highs, strict=True)
    counts = [min(max(count, low), high) for count, low, high in limits]
    total = min(max(total, sum(lows)), sum(highs))
    while (missing := total - sum(counts)) != 0:
        ends, sign = (highs, 1) if missing > 0 else (lows, -1)
        room = [sign * (end - count) for end, count in zip(ends, counts, strict=True)]
        places = [place for place, left in enumerate(room) if left > 0]
        # rounds end: each fills a place, or spreads all but a remainder smaller than the places,
        # which then goes one by one
        each, rest = divmod(abs(missing), len(places))
        for place in places if each else places[:rest]:
            counts[place] += sign * min(max(1, each), room[place])
    return counts


def within(one: Scored, wish: Int[Tensor, "b h"], totals: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
    """Near what each row wishes for the heads of one layer, with the exact total of each row."""
    of_rows = (t.tolist() for t in (wish, one.protected, one.available, totals))
    return wish.new_tensor([filled(*row) for row in zip(*of_rows, strict=True)])


def heads_of(one: Scored, tokens: Int[Tensor, "b"]) -> Int[Tensor, "b h"]:
    """The same number for every head of a layer; one that holds less passes the rest on."""
    slots = one.layer.slots
    if slots.tokens is tokens:
        wish, held = _even(slots)
    else:
        wish, held = _shared_evenly(one.available, tokens)
    return wish if held else within(one, wish, wish.sum(-1))


@derived
def _even(slots: Slots) -> tuple[Tensor, bool]:
    return _shared_evenly(slots.available, budget_of(slots, 1))


def _shared_evenly(
    available: Int[Tensor, "b h"], tokens: Int[Tensor, "b"]
) -> tuple[Int[Tensor, "b h"], bool]:
    """As many for every head; and whether all hold that many."""
    wish = tokens[:, None].expand_as(available).clone()
    return wish, bool((available >= wish).all())


def proportional(
    weights: Float[Tensor, "x"], least: Int[Tensor, "x"], most: Int[Tensor, "x"], total: int
) -> Int[Tensor, "x"]:
    """Counts that add up to ``total``: ``least``, and of the rest a share by weight.

    A place whose share exceeds ``most`` passes the excess on to the others, by their weights.
    """
    room = (most - least).double()
    rest, given = float(total - int(least.sum())), torch.zeros_like(room)
    open_places = (room > 0) & (weights > 0)
    # less than half a pair rounds to none: fill() meets the exact total
    while rest > 0.5 and bool(open_places.any()):
        share = torch.where(open_places, weights.double(), 0.0)
        step = torch.minimum(rest * share / share.sum(), room - given)
        given, rest = given + step, rest - float(step.sum())
        open_places = open_places & (room - given > 1e-9)  # full, but for the sums' rounding
    return fill(least + given.round().to(least.dtype), least, most, total)


def by_layer(
    scored: Sequence[Scored], wishes: Int[Tensor, "b L"], tokens: Int[Tensor, "b"]
) -> list[Int[Tensor, "b h"]]:
    """Counts near what each row wishes for each layer, with the exact total of ``tokens`` per KV
    head. The heads of a layer keep the same number, unless some do not hold that many.
    """
    rows = [_row(scored, row, wishes[row], int(t)) for row, t in enumerate(tokens.tolist())]
    return [torch.stack([row[place] for row in rows]) for place in range(len(scored))]


def _row(
    scored: Sequence[Scored], row: int, wish: Int[Tensor, "L"], tokens: int
) -> list[Int[Tensor, "h"]]:
    available = [one.available[row].cpu() for one in scored]  # layers may be on several devices
    protected = [one.protected[row].cpu() for one in scored]
    # equal heads hold no more than the layer's shortest, and as much as its most protected needs
    most = torch.stack([a.min() for a in available])
    least = torch.minimum(torch.stack([p.max() for p in protected]), most)
    layers = fill(wish.cpu(), least, most, tokens * len(scored))
    sizes = [len(a) for a in available]
    heads = torch.cat([t.expand(size) for t, size in zip(layers, sizes, strict=True)])
    exact = fill(heads, torch.cat(protected), torch.cat(available), tokens * sum(sizes))
    parts = torch.split(exact, sizes)
    return [part.to(one.layer.k.device) for part, one in zip(parts, scored, strict=True)]
