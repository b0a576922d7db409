"""What goes before all layers have been read, under a budget that spans them.

Such a budget decides after the last layer, and until then every layer would be held whole. But
where it takes the best pairs of all layers, the lowest score that is still good enough only rises
as more layers are read: what is not among the best so far never will be. So that can go at once,
and what is kept in the end is the very same.

Two budgets that span layers look alike and do not allow it. AirCache's share of a layer is over the
mean of all layers, so it may still rise as others are read. PyramidDrop's counts are known in the
first layer, but what a later layer cannot fill (after a second prompt it holds less) goes back to
the earlier ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.compression.pipeline import Kept
from foveate.policies.policy import Policy

WORTH = 4  # of so many parts of what is held one at least has to go, or nothing is stored anew


def shed(
    policy: Policy, waiting: Sequence[Scored], heads: int
) -> tuple[list[Scored], dict[int, Kept]]:
    """The layers that wait, and what is kept of those, by ordinal, of which a part goes now.

    ``heads`` are the KV heads of all layers, or more: those still to come have their share of what
    is kept. The layers come back without that part, and without their pairs, which are where they
    are held.
    """
    held, kept = sum(one.slots_held for one in waiting), int(waiting[0].tokens.sum()) * heads
    if policy.sheds is None or (held - kept) * WORTH < held:
        return list(waiting), {}  # which asks the device for two numbers a layer
    counts = policy.sheds.at_most(waiting, waiting[0].tokens, heads)
    left, kept_by_layer = list(waiting), {}
    for place, (one, most) in enumerate(zip(waiting, counts, strict=True)):
        if (one.slots_held - int(most.sum())) * WORTH < one.slots_held:
            continue
        mask = policy.select(one, most)
        k, v = one.layer.k, one.layer.v
        kept_by_layer[one.layer.ordinal] = Kept(mask, None, k, v, most, held=one.held)
        left[place] = only(one, mask, most)
    return left, kept_by_layer


def only(one: Scored, kept: Bool[Tensor, "b h n"], counts: Int[Tensor, "b h"]) -> Scored:
    """The layer with these slots alone, right-aligned, and without its pairs."""
    most = int(counts.max())
    order = to_the_right(kept, most)
    empty = torch.arange(most, device=order.device) < most - counts[..., None]

    def taken(t: Shaped[Tensor, "b h n"], where_empty: float | int) -> Shaped[Tensor, "b h s"]:
        return t.gather(-1, order).masked_fill(empty, where_empty)

    layer, slots, scores = one.layer, one.layer.slots, one.scores
    pos = taken(slots.pos, -1)
    image, spot = (None if t is None else taken(t, -1) for t in (slots.image, slots.spot))
    return replace(
        one,
        layer=replace(
            layer,
            k=_of_no_memory(layer.k, most),
            v=_of_no_memory(layer.v, most),
            state={},
            slots=replace(slots, pos=pos, image=image, spot=spot, mask=None),
        ),
        scores=scores._replace(
            values=taken(scores.values, -torch.inf),
            parts={name: taken(part, 0) for name, part in scores.parts.items()},
        ),
        raw=taken(one.raw, 0),
        held=True,
    )


def to_the_right(kept: Bool[Tensor, "b h n"], most: int) -> Int[Tensor, "b h s"]:
    """Where the last ``most`` slots come from if the kept ones move to the right, in order."""
    return kept.int().argsort(dim=-1, stable=True)[..., kept.shape[-1] - most :]


def _of_no_memory(t: Float[Tensor, "b h n d"], slots: int) -> Float[Tensor, "b h s d"]:
    return t.new_zeros(()).expand(*t.shape[:2], slots, t.shape[3])
