"""What the layers of one pass see alike: the model's mask over columns, what it says, and the slots
of layers that hold every column.

The mask is made inside the model's own forward pass, so the first layer that attends looks at it,
and the layers after it take over what was found, as long as their mask is the very same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.cache.slots import Slots, once_for_heads
from foveate.cache.tokens import Images
from foveate.hf.attention.masks import MaskFacts, over_slots


@dataclass(eq=False)
class PassView:
    """One mask of one pass. ``own`` is what the model's attention was given, ``mask`` the same over
    queries and columns; ``shape`` counts rows, tokens of the pass, and tokens seen with it.
    ``pads`` are known where the mask does not have to tell them. The other fields are found by the
    first layer that asks (:class:`foveate.hf.layer.state.CacheState`).
    """

    own: Any
    shape: tuple[int, int, int]
    mask: Tensor | None
    pads: Int[Tensor, "b"] | None
    device: torch.device
    facts: MaskFacts | None = None
    whole: tuple[Tensor, Slots] | None = None  # the slots of every column, and these columns


def slots_of(
    columns: Int[Tensor, "b h n"],
    compressed: bool,
    span: tuple[int, int],
    facts: MaskFacts,
    images: Images | None,
    mask: Tensor | None,
) -> Slots:
    """The slots at these columns, for queries that stand at a ``span`` of columns. ``mask`` is the
    model's, over queries and columns.
    """
    queries = torch.arange(*span, device=columns.device)
    pads = facts.pads.to(columns.device)[:, None]
    some = once_for_heads(columns)
    pos = torch.where(some < 0, -1, some - pads[:, None]).expand_as(columns)
    seen = None if facts.causal else over_slots(mask, columns, queries)
    if images is None:
        return Slots(pos=pos, q_pos=queries - pads, mask=seen)
    image, spot = (t.to(columns.device) for t in images)
    return Slots(
        pos=pos,
        q_pos=queries - pads,
        image=_of_slots(image, columns, compressed),
        spot=_of_slots(spot, columns, compressed),
        q_image=image[:, queries],
        mask=seen,
    )


def _of_slots(
    known: Int[Tensor, "b s"], columns: Int[Tensor, "b h n"], compressed: bool
) -> Int[Tensor, "b h n"]:
    everything = known[:, None].expand(*columns.shape[:2], -1)
    if not compressed:  # drafted tokens may be known here before they are held
        return everything[:, :, : columns.shape[2]]
    index = columns.long().clamp_min(0)  # they may be as they are held, of 32 bits
    return everything.gather(2, index).masked_fill(columns < 0, -1)
