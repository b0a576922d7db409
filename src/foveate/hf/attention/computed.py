"""The tokens of a pass that are computed from some layer on, where others were dropped before it.

A cache counts every token of a prompt as a column, computed or not. Below a cut a pass has fewer
places than columns: which column each place has is listed, row by row. Rows that keep fewer tokens
than others have places in front that stand for none (column -1); what is computed there is not
looked at by anybody.
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
    """``columns`` [b, m] of the places, ascending, -1 in front; the pass had ``given`` tokens, from
    column ``first`` on. ``mask`` is what the model was given in place of the one that it reads
    below the door, if the pass was cut there.
    """

    def __init__(
        self, columns: Int[Tensor, "b m"], first: int, given: int, at_door: bool, mask: Any = None
    ):
        self.columns, self.first, self.given = columns, first, given
        self.at_door, self.mask = at_door, mask
        self._of_heads: Int[Tensor, "b h m"] | None = None
        self._slots: tuple[tuple[object, ...], Slots] | None = None

    @property
    def end(self) -> int:
        """The column behind the pass."""
        return self.first + self.given

    @property
    def empty(self) -> bool:
        """Whether some places stand for no token."""
        return bool((self.columns < 0).any())

    def own_mask(self, of_model: Any) -> Any:
        """The model's own mask over the tokens given, of the one that its attention was given."""
        mask = self.mask if self.at_door else of_model
        padding = isinstance(mask, Tensor) and mask.ndim == 2  # which the cache knows already
        return None if padding else mask

    def until(self, end: int) -> Computed:
        """The tokens before a column; all that come after it are computed."""
        beyond = self.end - end
        columns = self.columns[:, : self.columns.shape[1] - beyond]
        return Computed(columns, self.first, self.given - beyond, self.at_door, self.mask)

    def of_heads(self, h: int, device: torch.device) -> Int[Tensor, "b h m"]:
        """The columns of the pairs of a layer that holds this pass alone."""
        known = self._of_heads
        if known is None or known.shape[1] != h or known.device != device:
            known = self._of_heads = self.columns.to(device)[:, None].expand(-1, h, -1)
        return known

    def visible(
        self, mask: Tensor | None, facts: MaskFacts, columns: Int[Tensor, "b h n"]
    ) -> Bool[Tensor, "b #h m n"]:
        """Which slots of these ``columns`` each place sees, under the model's mask [b, 1, given,
        seen]. A place that stands for no token sees all, for a softmax over nothing is no number.
        """
        columns, at = once_for_heads(columns), self.columns.to(columns.device)
        nobody = (at < 0)[:, None, :, None]
        if mask is None or facts.causal:
            real = columns >= facts.pads.to(columns.device)[:, None, None]
            seen = (columns[:, :, None] <= at[:, None, :, None]) & real[:, :, None]
            return seen | nobody
        return over_slots(of_queries(mask, at - self.first), columns, at[0]) | nobody

    def slots(
        self,
        columns: Int[Tensor, "b h n"],
        facts: MaskFacts,
        images: Images | None,
        mask: Tensor | None,
    ) -> Slots:
        """The slots of these columns, with the places as queries; one object for all layers that
        hold this pass alone.
        """
        of = (columns, facts, images)
        if self._slots and all(a is b for a, b in zip(of, self._slots[0], strict=True)):
            return self._slots[1]
        slots = self._slots_of(columns, facts, images, mask)
        self._slots = of, slots
        return slots

    def _slots_of(
        self,
        columns: Int[Tensor, "b h n"],
        facts: MaskFacts,
        images: Images | None,
        mask: Tensor | None,
    ) -> Slots:
        at, pads = self.columns.to(columns.device), facts.pads.to(columns.device)[:, None]
        pos = (once_for_heads(columns) - pads[:, None]).clamp_min(-1)
        pos = pos.masked_fill(once_for_heads(columns) < 0, -1).expand_as(columns)
        image = spot = q_image = None
        if images is not None:
            image, spot = (at_columns(t.to(columns.device), columns) for t in images)
            q_image = at_columns(images[0].to(at.device), at[:, None])[:, 0]
        return Slots(
            pos=pos,
            q_pos=torch.where(at < 0, -1, at - pads),
            image=image,
            spot=spot,
            q_image=q_image,
            mask=None if facts.causal else self.visible(mask, facts, columns),
            read=self.end - pads[:, 0],
        )
