"""Where a layer's slots and queries come from: positions and images. All layers that hold every
column have the same, so it is worked out once a pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
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
        self._columns: Int[Tensor, "b h n"] | None = None
        self._of: tuple[object, ...] = ()
        self._found: Origins | None = None

    def columns(self, k: Float[Tensor, "b h n d"]) -> Int[Tensor, "b h n"]:
        """The columns of a layer that holds every column: one tensor for all that are alike."""
        known, shape = self._columns, k.shape[:3]  # layers may differ in heads, and in their device
        if known is None or known.shape != shape or known.device != k.device:
            columns = torch.arange(shape[2], dtype=torch.int32, device=k.device)  # as they are held
            known = self._columns = columns.expand(shape)
        return known

    def of(
        self,
        columns: Int[Tensor, "b h n"],
        compressed: bool,
        span: tuple[int, int],
        facts: MaskFacts,
        images: Images | None,
    ) -> Origins:
        """From the columns of the slots, and the ``span`` of those of the queries. Slot i of a
        layer that is not ``compressed`` is column i; ``facts`` are one object for all layers of a
        pass, so are ``images``, and so should ``columns`` be.
        """
        if compressed:
            return _origins(columns, True, span, facts, images)
        of = (columns, facts, images)
        if self._found is None or any(a is not b for a, b in zip(of, self._of, strict=True)):
            self._of, self._found = of, _origins(columns, False, span, facts, images)
        return self._found


def _origins(
    columns: Int[Tensor, "b h n"],
    compressed: bool,
    span: tuple[int, int],
    facts: MaskFacts,
    images: Images | None,
) -> Origins:
    queries = torch.arange(*span, device=columns.device)
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
