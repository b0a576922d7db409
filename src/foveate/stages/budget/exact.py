"""Exact totals: whatever a rule wishes, the counts add up to the budget."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def fill(
    wish: Int[Tensor, "x"], least: Int[Tensor, "x"], most: Int[Tensor, "x"], total: int
) -> Int[Tensor, "x"]:
    """Counts near ``wish``, between ``least`` and ``most``, that add up to ``total``.

    What is missing or too much is spread evenly over the places that still have room, the remainder
    going to the earlier ones. If ``total`` is out of reach the nearest reachable total is met.
    """
    counts = torch.minimum(torch.maximum(wish, least), most)
    total = min(max(total, int(least.sum())), int(most.sum()))
    while (missing := total - int(counts.sum())) != 0:
        room = most - counts if missing > 0 else counts - least
        open_places = room > 0
        each, rest = divmod(abs(missing), int(open_places.sum()))
        share = each * open_places if each else open_places & (open_places.cumsum(0) <= rest)
        step = torch.minimum(share.to(room.dtype), room)
        counts = counts + step if missing > 0 else counts - step
    return counts
