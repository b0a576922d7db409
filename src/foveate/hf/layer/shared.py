"""What the layers of one pass find out together: the mask over columns, what it says, images and
slots. Each is remembered for as long as what it follows from is the very same object.

All layers that hold every column have the same slots, and share one object, so that what follows
from them is worked out once a pass.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from foveate.cache.slots import Slots, once_for_heads
from foveate.compression.tensors import image_index, spot_index
from foveate.hf.attention.computed import Images
from foveate.hf.attention.masks import MaskFacts, examine, over_columns, over_slots


class SharedByLayers:
    """One object for a cache; nothing in it has to be kept."""

    def __init__(self) -> None:
        self._own: tuple[Any, int, int, int] | None = None  # a mask of the model's own kind
        self._mask_of_own: Tensor | None = None
        self._read: tuple[Tensor | None, tuple[int, int, int]] | None = None  # a mask, its shape
        self._facts: MaskFacts | None = None
        self._images: tuple[Tensor, Images] | None = None  # of which vision
        self._columns: Int[Tensor, "b h n"] | None = None
        self._of: tuple[object, object, object] = (None, None, None)
        self._found: Slots | None = None

    def over_columns(self, own_mask: Any, b: int, m: int, n: int) -> Tensor | None:
        """The model's mask over queries and columns; made once for all layers of a pass. One that
        needs no making is not remembered: a traced step would be traced anew for every length.
        """
        if own_mask is None or (isinstance(own_mask, Tensor) and own_mask.ndim == 4):
            return own_mask
        of = (own_mask, b, m, n)
        if self._own is None or own_mask is not self._own[0] or of[1:] != self._own[1:]:
            self._own, self._mask_of_own = of, over_columns(own_mask, b, m, n)
        return self._mask_of_own

    def known_facts(self, mask: Tensor | None, shape: tuple[int, int, int]) -> MaskFacts | None:
        """What a mask says, if it was the one that was read last."""
        read = self._read
        return self._facts if read and mask is read[0] and shape == read[1] else None

    def read_facts(
        self,
        mask: Tensor | None,
        shape: tuple[int, int, int],
        pads: Int[Tensor, "b"] | None,
        device: torch.device,
    ) -> MaskFacts:
        """What a mask of this shape (rows, queries, columns) says; ``pads`` if they are known."""
        self._read, self._facts = (mask, shape), examine(mask, pads, shape, device)
        return self._facts

    def images(self, vision: Bool[Tensor, "b s"], frames: Bool[Tensor, "b s"] | None) -> Images:
        """Image and spot of every token seen, from which are visual and where frames begin."""
        if self._images is None or self._images[0] is not vision:
            self._images = (vision, (image_index(vision, frames), spot_index(vision, frames)))
        return self._images[1]

    def columns(self, like: Shaped[Tensor, "b h n *d"]) -> Int[Tensor, "b h n"]:
        """The columns of a layer that holds every column: one tensor for all that are alike."""
        known, shape = self._columns, like.shape[:3]  # layers may differ in heads, in their device
        if known is None or known.shape != shape or known.device != like.device:
            columns = torch.arange(shape[2], dtype=torch.int32, device=like.device)  # as held
            known = self._columns = columns.expand(shape)
        return known

    def slots(
        self,
        columns: Int[Tensor, "b h n"],
        span: tuple[int, int],
        facts: MaskFacts,
        images: Images | None,
        mask: Tensor | None,
    ) -> Slots:
        """From the columns of the slots, and the ``span`` of those of the queries. Layers whose
        columns are :meth:`columns` share the slots; ``facts`` are one object for all layers of a
        pass, and so are ``images``. ``mask`` is the model's.
        """
        if columns is not self._columns:
            return _slots(columns, True, span, facts, images, mask)
        (held, known, of) = self._of
        if self._found is None or columns is not held or facts is not known or images is not of:
            self._of = columns, facts, images
            self._found = _slots(columns, False, span, facts, images, mask)
        return self._found


def _slots(
    columns: Int[Tensor, "b h n"],
    compressed: bool,
    span: tuple[int, int],
    facts: MaskFacts,
    images: Images | None,
    mask: Tensor | None,
) -> Slots:
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
