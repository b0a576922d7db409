"""Early removal of pairs under a budget that spans all layers.

Such a budget decides after the last layer, so every layer's pairs would be stored until then. If it
keeps the best pairs of all layers, the lowest kept score only rises as more layers are read: a pair
that is not among the best so far is never kept. Such pairs are removed at once, and the result is
exactly the same.

Two budgets that span layers look alike but do not allow it. AirCache divides a layer's share by the
mean of all layers, so the share may rise as others are read. PyramidDrop knows its counts in the
first layer, but returns to earlier layers what a later one cannot fill (after a second prompt it
has fewer pairs).
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

WORTH = 4  # at least 1/WORTH of the pairs must go, or copying the others is not worth it


def shed(
    policy: Policy, waiting: Sequence[Scored], heads: int
) -> tuple[list[Scored], dict[int, Kept]]:
    """Remove pairs of waiting layers that cannot be kept.

    Args:
        policy: its budget has to span layers.
        waiting: the layers read so far.
        heads: KV heads of all layers, or more, as later layers take part of the budget.

    Returns:
        The waiting layers without the removed slots and without pairs, and the kept pairs of each
        layer that changed, by ordinal.
    """
    stored, kept = (
        sum(scored.slots_held for scored in waiting),
        int(waiting[0].tokens.sum()) * heads,
    )
    if policy.sheds is None or (stored - kept) * WORTH < stored:
        return list(waiting), {}
    counts = policy.sheds.at_most(waiting, waiting[0].tokens, heads)
    remaining, kept_by_layer = list(waiting), {}
    for index, (scored, limit) in enumerate(zip(waiting, counts, strict=True)):
        if (scored.slots_held - int(limit.sum())) * WORTH < scored.slots_held:
            continue
        mask = policy.select(scored, limit)
        k, v = scored.layer.k, scored.layer.v
        kept_by_layer[scored.layer.ordinal] = Kept(
            mask, None, k, v, limit, is_stored=scored.is_stored
        )
        remaining[index] = only(scored, mask, limit)
    return remaining, kept_by_layer


def only(scored: Scored, kept: Bool[Tensor, "b h n"], counts: Int[Tensor, "b h"]) -> Scored:
    """Return the layer with the kept slots alone, right-aligned, and without its pairs."""
    longest = int(counts.max())
    order = to_the_right(kept, longest)
    empty = torch.arange(longest, device=order.device) < longest - counts[..., None]

    def taken(t: Shaped[Tensor, "b h n"], where_empty: float | int) -> Shaped[Tensor, "b h s"]:
        return t.gather(-1, order).masked_fill(empty, where_empty)

    layer, slots, scores = scored.layer, scored.layer.slots, scored.scores
    pos = taken(slots.pos, -1)
    image, spot = (None if t is None else taken(t, -1) for t in (slots.image, slots.spot))
    return replace(
        scored,
        layer=replace(
            layer,
            k=_of_no_memory(layer.k, longest),
            v=_of_no_memory(layer.v, longest),
            state={},
            slots=replace(slots, pos=pos, image=image, spot=spot, mask=None),
        ),
        scores=scores._replace(
            values=taken(scores.values, -torch.inf),
            parts={name: taken(part, 0) for name, part in scores.parts.items()},
        ),
        raw=taken(scored.raw, 0),
        is_stored=True,
    )


def to_the_right(kept: Bool[Tensor, "b h n"], size: int) -> Int[Tensor, "b h s"]:
    """Return the source index of each of the last ``size`` slots if kept ones move to the right.

    Kept slots keep their order.
    """
    return kept.int().argsort(dim=-1, stable=True)[..., kept.shape[-1] - size :]


def _of_no_memory(t: Float[Tensor, "b h n d"], slots: int) -> Float[Tensor, "b h s d"]:
    """Return zeros of this shape with ``slots`` slots, expanded from one number."""
    return t.new_zeros(()).expand(*t.shape[:2], slots, t.shape[3])
