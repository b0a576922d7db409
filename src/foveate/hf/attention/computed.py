"""Tokens of a pass that are computed from some layer on, after pruning dropped others.

A cache counts every token of a prompt as a column, computed or not. After a cut, a pass has fewer
positions in its hidden states than columns, so the column of each position is listed, row by row.
Rows that keep fewer tokens are padded in front (column -1); nothing attends to the padding.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.slots import Slots, once_for_heads
from foveate.cache.tokens import Images
from foveate.hf.attention.masks import MaskFacts, at_columns, of_queries, over_slots


class Computed:
    """Columns of the computed tokens of one pass.

    ``columns`` [b, m], ascending, with padding -1 in front; the pass had ``inputs`` tokens before
    the cut, from column ``first`` on. ``at_door``: the pass was cut before the first layer;
    ``mask`` is then the model's mask before that cut.
    """

    def __init__(
        self, columns: Int[Tensor, "b m"], first: int, inputs: int, at_door: bool, mask: Any = None
    ):
        self.columns, self.first, self.inputs = columns, first, inputs
        self.at_door, self.mask = at_door, mask
        self._of_heads: Int[Tensor, "b h m"] | None = None
        self._slots: tuple[tuple[object, ...], Slots] | None = None

    @property
    def end(self) -> int:
        """Column after the last one of the pass."""
        return self.first + self.inputs

    @property
    def empty(self) -> bool:
        """True if some positions are padding."""
        return bool((self.columns < 0).any())

    def own_mask(self, of_model: Any) -> Any:
        """Return the model's mask over the pass's tokens before the cut. ``of_model``: the mask
        that the attention received. None for a two-dimensional mask: the cache knows the padding
        already.
        """
        mask = self.mask if self.at_door else of_model
        padding = isinstance(mask, Tensor) and mask.ndim == 2  # the cache knows it already
        return None if padding else mask

    def until(self, end: int) -> Computed:
        """Return the computed tokens before column ``end``; requires all tokens after it to be
        computed.
        """
        beyond = self.end - end
        columns = self.columns[:, : self.columns.shape[1] - beyond]
        return Computed(columns, self.first, self.inputs - beyond, self.at_door, self.mask)

    def of_heads(self, h: int, device: torch.device) -> Int[Tensor, "b h m"]:
        """Return the columns per KV head, for a layer that stores this pass only; cached."""
        cached = self._of_heads
        if cached is None or cached.shape[1] != h or cached.device != device:
            cached = self._of_heads = self.columns.to(device)[:, None].expand(-1, h, -1)
        return cached

    def visible(
        self, mask: Tensor | None, facts: MaskFacts, columns: Int[Tensor, "b h n"]
    ) -> Bool[Tensor, "b #h m n"]:
        """Return the mask over slots at ``columns`` for each position, from the model's mask [b, 1,
        inputs, seen]. Padding positions see every slot, as a softmax over no slots is NaN.
        """
        columns, own = once_for_heads(columns), self.columns.to(columns.device)
        is_padding = (own < 0)[:, None, :, None]
        if mask is None or facts.causal:
            real = columns >= facts.pads.to(columns.device)[:, None, None]
            seen = (columns[:, :, None] <= own[:, None, :, None]) & real[:, :, None]
            return seen | is_padding
        return over_slots(of_queries(mask, own - self.first), columns, own[0]) | is_padding

    def slots(
        self,
        columns: Int[Tensor, "b h n"],
        facts: MaskFacts,
        images: Images | None,
        mask: Tensor | None,
    ) -> Slots:
        """Return the slots at ``columns``, with the computed tokens as queries. Cached: all layers
        that store this pass only share one object.
        """
        key = (columns, facts, images)
        if self._slots and all(a is b for a, b in zip(key, self._slots[0], strict=True)):
            return self._slots[1]
        slots = self._slots_of(columns, facts, images, mask)
        self._slots = key, slots
        return slots

    def _slots_of(
        self,
        columns: Int[Tensor, "b h n"],
        facts: MaskFacts,
        images: Images | None,
        mask: Tensor | None,
    ) -> Slots:
        own, pads = self.columns.to(columns.device), facts.pads.to(columns.device)[:, None]
        pos = (once_for_heads(columns) - pads[:, None]).clamp_min(-1)
        pos = pos.masked_fill(once_for_heads(columns) < 0, -1).expand_as(columns)
        image = spot = q_image = None
        if images is not None:
            image, spot = (at_columns(t.to(columns.device), columns) for t in images)
            q_image = at_columns(images[0].to(own.device), own[:, None])[:, 0]
        return Slots(
            pos=pos,
            q_pos=torch.where(own < 0, -1, own - pads),
            image=image,
            spot=spot,
            q_image=q_image,
            mask=None if facts.causal else self.visible(mask, facts, columns),
            read=self.end - pads[:, 0],
        )
