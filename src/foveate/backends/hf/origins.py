"""Where a layer's slots and queries come from: positions and images. All layers that hold every
column have the same, so it is worked out once a pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.backends.hf.masks import MaskFacts
from foveate.core.layer import once_for_heads

Images = tuple[Int[Tensor, "b s"], Int[Tensor, "b s"]]
"""Of every token seen: its image (-1: text), and which visual token of that image it is."""


class Origins(NamedTuple):
    """Positions count from each row's first token and are negative before it; images are None
    where nothing told which tokens are visual.
    """

    pos: Int[Tensor, "b h n"]
    q_pos: Int[Tensor, "b m"]
    image: Int[Tensor, "b h n"] | None = None
    spot: Int[Tensor, "b h n"] | None = None
    q_image: Int[Tensor, "b m"] | None = None


class OriginsOfPass:
    """The origins of a pass's layers; those of layers that hold every column are remembered."""

    def __init__(self) -> None:
        self._facts: MaskFacts | None = None
        self._images: Images | None = None
        self._held: tuple[torch.Size, torch.device] | None = None
        self._found: Origins | None = None

    def of(
        self,
        columns: Int[Tensor, "b h n"],
        compressed: bool,
        queries: Int[Tensor, "m"],
        facts: MaskFacts,
        images: Images | None,
    ) -> Origins:
        """From the columns of slots and queries. Slot i of a layer that is not ``compressed`` is
        column i; ``facts`` are one object for all layers of a pass, and so are ``images``.
        """
        if compressed:
            return _origins(columns, True, queries, facts, images)
        held = (columns.shape, columns.device)  # layers may differ in heads, and in their device
        known = self._facts is facts and self._images is images and self._held == held
        if self._found is None or not known:
            self._facts, self._images, self._held = facts, images, held
            self._found = _origins(columns, False, queries, facts, images)
        return self._found


def _origins(
    columns: Int[Tensor, "b h n"],
    compressed: bool,
    queries: Int[Tensor, "m"],
    facts: MaskFacts,
    images: Images | None,
) -> Origins:
    pads = facts.pads.to(columns.device)[:, None]
    some = once_for_heads(columns)
    pos = torch.where(some < 0, -1, some - pads[:, None]).expand_as(columns)
    if images is None:
        return Origins(pos, queries - pads)
    image, spot = (t.to(columns.device) for t in images)
    return Origins(
        pos,
        queries - pads,
        _of_slots(image, columns, compressed),
        _of_slots(spot, columns, compressed),
        image[:, queries],
    )


def _of_slots(
    known: Int[Tensor, "b s"], columns: Int[Tensor, "b h n"], compressed: bool
) -> Int[Tensor, "b h n"]:
    everything = known[:, None].expand(*columns.shape[:2], -1)
    if not compressed:  # drafted tokens may be known here before they are held
        return everything[:, :, : columns.shape[2]]
    return everything.gather(2, columns.clamp_min(0)).masked_fill(columns < 0, -1)
