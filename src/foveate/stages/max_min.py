"""Greedy max-min diversity by cosine distance in float32.

Each chosen slot is the one farthest from all chosen before it.

Source: DivPrune (arXiv:2503.02175), section 3.3 and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.stages.score.attention_rows import blocks


def spread(
    k: Float[Tensor, "b h n d"],
    free: Bool[Tensor, "b h n"],
    chosen: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
) -> Bool[Tensor, "b h n"]:
    """Mark ``counts`` of the ``free`` slots that are far from each other and from those chosen."""
    marked = free | chosen
    marked_slots = (
        marked.any(0).any(0).nonzero()[:, 0]
    )  # without text, whose distances are not needed
    unit = F.normalize(k[:, :, marked_slots].float(), dim=-1)
    unit = unit.masked_fill(~marked[:, :, marked_slots, None], 0.0)
    picked = torch.zeros_like(free)
    picked[:, :, marked_slots] = _farthest(
        unit, free[:, :, marked_slots], chosen[:, :, marked_slots], counts
    )
    return picked


def _farthest(
    unit: Float[Tensor, "b h n d"],
    free: Bool[Tensor, "b h n"],
    chosen: Bool[Tensor, "b h n"],
    counts: Int[Tensor, "b h"],
) -> Bool[Tensor, "b h n"]:
    """Choose slots one after the other, each farthest from all before it."""
    nearest, alone = _nearest(unit, chosen), ~chosen.any(-1, keepdim=True)
    if bool(alone.any()):  # nothing is chosen yet: the most isolated slot comes first
        nearest = torch.where(alone, _nearest(unit, free), nearest)
    left = nearest.masked_fill(~free, -torch.inf)  # chosen slots get -inf, too, and stay so
    order = []
    for step in range(int(counts.max())):
        best = left.argmax(-1, keepdim=True)
        order.append(best)
        latest = unit.take_along_dim(best[..., None], dim=2)
        distance = 1 - (unit @ latest.mT).squeeze(-1)
        nearer = torch.minimum(left, distance)
        # the first slot was chosen by its isolation, which is no distance to a chosen slot
        left = torch.where(alone & free, distance, nearer) if step == 0 else nearer
        left.scatter_(-1, best, -torch.inf)
    return _first(order, counts, free)


def _first(
    order: list[Int[Tensor, "b h 1"]], counts: Int[Tensor, "b h"], like: Bool[Tensor, "b h n"]
) -> Bool[Tensor, "b h n"]:
    """Mark the first ``counts`` slots of the order."""
    # heads choose different numbers: slots beyond a head's own go to a column that is cut off
    n, slots = like.shape[2], torch.cat([*order, counts.new_zeros(*counts.shape, 1)], dim=-1)
    later = torch.arange(slots.shape[2], device=slots.device) >= counts[..., None]
    beyond = F.pad(torch.zeros_like(like), (0, 1))
    return beyond.scatter(-1, slots.masked_fill(later, n), True)[..., :n]


def _nearest(unit: Float[Tensor, "b h n d"], marked: Bool[Tensor, "b h n"]) -> Tensor:
    """Return each slot's distance to the nearest other marked slot; infinite if there is none."""
    if not bool(marked.any()):
        return torch.full_like(unit[..., 0], torch.inf)
    return torch.cat(list(_nearest_of(unit, marked)), dim=2)


def _nearest_of(unit: Float[Tensor, "b h n d"], marked: Bool[Tensor, "b h n"]) -> Iterator[Tensor]:
    out = torch.zeros_like(unit[..., 0]).masked_fill(~marked, torch.inf)[:, :, None]
    for block in blocks(unit.shape[2]):
        distance = (1 - unit[:, :, block] @ unit.mT).add_(out)
        distance.diagonal(block.start, 2, 3).fill_(torch.inf)
        yield distance.amin(-1)
