"""Max-min diversity, greedily: one after the other, each the farthest from all chosen before it, by
cosine distance in float32.

Source: DivPrune (arXiv:2503.02175), section 3.3 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.stages.score.rows import blocks


def spread(
    k: Float[Tensor, "b h n d"],
    free: Bool[Tensor, "b h n"],
    chosen: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
) -> Bool[Tensor, "b h n"]:
    """Of the ``free`` slots, ``counts`` that are far from each other and from those chosen."""
    marked = free | chosen
    some = marked.any(0).any(0).nonzero()[:, 0]  # not text, whose distances nobody asks for
    unit = F.normalize(k[:, :, some].float(), dim=-1)
    unit = unit.masked_fill(~marked[:, :, some, None], 0.0)
    picked = torch.zeros_like(free)
    picked[:, :, some] = _farthest(unit, free[:, :, some], chosen[:, :, some], counts)
    return picked


def _farthest(
    unit: Float[Tensor, "b h n d"],
    free: Bool[Tensor, "b h n"],
    chosen: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
) -> Bool[Tensor, "b h n"]:
    """One after the other, each farthest from all before it."""
    nearest, alone = _nearest(unit, chosen), ~chosen.any(-1, keepdim=True)
    if bool(alone.any()):  # nothing to be far from yet: the most isolated is first
        nearest = torch.where(alone, _nearest(unit, free), nearest)
    left = nearest.masked_fill(~free, -torch.inf)  # and so for good what has been chosen
    order = []
    for step in range(int(counts.max())):
        best = left.argmax(-1, keepdim=True)
        order.append(best)
        one = unit.take_along_dim(best[..., None], dim=2)
        distance = 1 - (unit @ one.mT).squeeze(-1)
        nearer = torch.minimum(left, distance)
        # the first one was chosen for its isolation, which is no distance to anything chosen
        left = torch.where(alone & free, distance, nearer) if step == 0 else nearer
        left.scatter_(-1, best, -torch.inf)
    return _first(order, counts, free)


def _first(
    order: list[Int[Tensor, "b h 1"]], counts: Int[Tensor, "b h"], like: Bool[Tensor, "b h n"]
) -> Bool[Tensor, "b h n"]:
    """The first ``counts`` slots of the order."""
    # heads choose different numbers: what is beyond a head's own goes to a column that is cut off
    n, places = like.shape[2], torch.cat([*order, counts.new_zeros(*counts.shape, 1)], dim=-1)
    later = torch.arange(places.shape[2], device=places.device) >= counts[..., None]
    beyond = F.pad(torch.zeros_like(like), (0, 1))
    return beyond.scatter(-1, places.masked_fill(later, n), True)[..., :n]


def _nearest(unit: Float[Tensor, "b h n d"], marked: Bool[Tensor, "b h n"]) -> Tensor:
    """The distance of every slot to the nearest other one that is marked; infinite for none."""
    if not bool(marked.any()):
        return torch.full_like(unit[..., 0], torch.inf)
    return torch.cat(list(_nearest_of(unit, marked)), dim=2)


def _nearest_of(unit: Float[Tensor, "b h n d"], marked: Bool[Tensor, "b h n"]) -> Iterator[Tensor]:
    out = torch.zeros_like(unit[..., 0]).masked_fill(~marked, torch.inf)[:, :, None]
    for some in blocks(unit.shape[2]):
        distance = (1 - unit[:, :, some] @ unit.mT).add_(out)
        distance.diagonal(some.start, 2, 3).fill_(torch.inf)
        yield distance.amin(-1)
