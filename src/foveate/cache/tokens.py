"""A table of facts about every token that a cache has seen.

The table is immutable: every method returns a new one. To go back to an earlier state, keep the
earlier table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

Images = tuple[Int[Tensor, "b s"], Int[Tensor, "b s"]]
"""Image of every token seen (-1: text), and the token's index within that image."""

_OF_TOKENS = ("vision", "frame", "image", "slot")
"""Names of the fields of [b, seen]."""


class Tokens(NamedTuple):
    """Facts about tokens: a column per token seen, padding included; a row per row of the batch.

    ``vision`` marks visual tokens; it is complete if every pass marked its own (``vision_known``).
    ``frame`` marks the first token of each frame of a video. ``image`` and ``slot`` are passed by
    callers that know them (streams); otherwise they follow from ``vision`` and ``frame``.
    ``position`` is the position on each axis, for one row, if a caller needs it. ``pad`` counts the
    padding in front of each row. ``dropped`` marks, by layer of the model, tokens that this layer
    and later ones never compute. ``extras`` are the model's own facts about each row, such as the
    offsets of M-RoPE. ``forgotten`` counts tokens that no longer have a column, and ``shift`` is
    how far positions are ahead of columns because of it.
    """

    vision: Bool[Tensor, "b seen"] | None = None
    vision_known: bool = True
    frame: Bool[Tensor, "b seen"] | None = None
    image: Int[Tensor, "b seen"] | None = None
    slot: Int[Tensor, "b seen"] | None = None
    position: Int[Tensor, "axes seen"] | None = None
    pad: Int[Tensor, "b"] | None = None
    dropped: Mapping[int, Bool[Tensor, "b seen"]] = {}
    extras: Mapping[str, Any] = {}
    forgotten: int = 0
    shift: int = 0

    # Passes

    def extend(
        self,
        vision: Bool[Tensor, "b t"] | None,
        frame: Bool[Tensor, "b t"] | None = None,
        images: Images | None = None,
    ) -> Tokens:
        """Add the tokens of a pass.

        Args:
            vision: True at visual tokens; None: unknown.
            frame: True at the first token of each frame of a video.
            images: image and slot of each token; None: text, if an earlier pass had images.
        """
        if vision is None:
            return self._replace(vision_known=False)
        image, slot = self.image, self.slot
        if image is not None and slot is not None:
            text = torch.full_like(vision, -1, dtype=torch.long)
            new = (text, text) if images is None else images
            image, slot = torch.cat([image, new[0]], dim=1), torch.cat([slot, new[1]], dim=1)
        all_vision = vision if self.vision is None else torch.cat([self.vision, vision], dim=1)
        return self._replace(
            vision=all_vision, frame=self._frames(vision, frame), image=image, slot=slot
        )

    def _frames(
        self, vision: Bool[Tensor, "b t"], frame: Bool[Tensor, "b t"] | None
    ) -> Bool[Tensor, "b seen"] | None:
        if frame is None and self.frame is None:
            return None
        none = torch.zeros_like(vision)
        before = none[:, :0] if self.vision is None else torch.zeros_like(self.vision)
        before = before if self.frame is None else self.frame
        return torch.cat([before, none if frame is None else frame], dim=1)

    def add_positions(self, position: Int[Tensor, "axes t"]) -> Tokens:
        """Add the positions of a pass, on one axis or on several."""
        earlier = self.position
        before = position[:, :0] if earlier is None or not earlier.shape[1] else earlier
        axes = max(len(before), len(position))
        both = [before.expand(axes, -1), position.expand(axes, -1)]
        return self._replace(position=torch.cat(both, dim=1))

    def drop_before(self, layer: int, dropped: Bool[Tensor, "b s"]) -> Tokens:
        """Add tokens that this layer of the model and later ones do not compute."""
        union = dropped.clone()
        if (earlier := self.dropped.get(layer)) is not None:
            union[:, : earlier.shape[1]] |= earlier
        return self._replace(dropped={**self.dropped, layer: union})

    def note(self, extras: Mapping[str, Any]) -> Tokens:
        """Add facts of the model's own, or replace them."""
        return self._replace(extras={**self.extras, **extras})

    # Rows and columns

    def rows(self, index: Int[Tensor, "r"]) -> Tokens:
        """Return the table of the rows ``index``. Facts noted once for all rows stay."""
        last = int(index.max())

        def selected(t: Any) -> Any:
            if not isinstance(t, Tensor) or t.shape[0] <= last:
                return t
            return t.index_select(0, index.to(t.device))

        return self._replace(
            **{name: selected(getattr(self, name)) for name in (*_OF_TOKENS, "pad")},
            dropped={layer: selected(t) for layer, t in self.dropped.items()},
            extras={name: selected(t) for name, t in self.extras.items()},
        )

    def drop(self, kept: Bool[Tensor, "seen"]) -> Tokens:
        """Return the table of the columns in ``kept``; the others count as forgotten."""

        def remaining(t: Any) -> Any:
            if t is None:
                return None
            padded = torch.nn.functional.pad(t, (0, len(kept) - t.shape[1]))
            return padded[:, kept.to(t.device)]

        gone = len(kept) - int(kept.sum())
        return self._replace(
            **{name: remaining(getattr(self, name)) for name in (*_OF_TOKENS, "position")},
            dropped={layer: remaining(t) for layer, t in self.dropped.items()},
        ).move(gone)

    def concat(
        self,
        images: Images,
        own: Int[Tensor, "seen"],
        new: Int[Tensor, "u"],
    ) -> Tokens:
        """Return the table with visual tokens that come back; their positions become unknown.

        Args:
            images: image and slot of the tokens that come back, [1, u] each.
            own: new columns of the tokens of this table.
            new: columns of the tokens that come back.
        """
        end = len(own) + int((~torch.isin(new, own)).sum())

        def filled(t: Tensor, fill: Any, back: Any) -> Tensor:
            table = t.new_full((1, end), fill)
            table[:, new.to(t.device)] = back
            table[:, own.to(t.device)] = t
            return table

        image, slot = self.image, self.slot
        if image is not None and slot is not None:
            image, slot = (
                filled(image, -1, images[0].to(image)),
                filled(slot, -1, images[1].to(slot)),
            )
        return self._replace(
            vision=None if self.vision is None else filled(self.vision, False, True),
            frame=None if self.frame is None else filled(self.frame, False, False),
            image=image,
            slot=slot,
            position=None,
        ).move(len(own) - end)

    def move(self, gone: int) -> Tokens:
        """Return the table after ``gone`` more tokens lost their columns (negative: fewer)."""
        offsets = {name: t + gone for name, t in self.extras.items() if isinstance(t, Tensor)}
        return self._replace(forgotten=self.forgotten + gone, shift=self.shift + gone).note(offsets)

    def ahead(self, shift: int) -> Tokens:
        """Return the table with positions ``shift`` ahead of columns in every row."""
        tensors = {name: t for name, t in self.extras.items() if isinstance(t, Tensor)}
        offsets = {name: torch.full_like(t, shift) for name, t in tensors.items()}
        return self._replace(shift=shift).note(offsets)

    # Derived facts

    def padding(self, like: Shaped[Tensor, "b *_"]) -> Int[Tensor, "b"]:
        """Return the padding in front of each row, on the device of ``like``; zeros if unknown."""
        if self.pad is None:
            return torch.zeros(len(like), dtype=torch.int64, device=like.device)
        return self.pad.to(like.device)

    @property
    def images(self) -> Images | None:
        """Image and slot of every token; None if it is unknown which tokens are visual."""
        if self.image is not None and self.slot is not None:
            return self.image, self.slot
        if not self.vision_known or self.vision is None:
            return None
        return image_index(self.vision, self.frame), spot_index(self.vision, self.frame)

    @property
    def seen_visual(self) -> Bool[Tensor, "b seen"] | None:
        """``vision`` if every pass marked its visual tokens, else None."""
        return self.vision if self.vision_known else None

    def dropped_before(self, layer: int, seen: int) -> Bool[Tensor, "b n"] | None:
        """Return the columns that a layer never computed, as a mask; None if there are none."""
        union: Tensor | None = None
        for first_layer, dropped in self.dropped.items():
            if first_layer <= layer:
                padded = torch.nn.functional.pad(dropped, (0, seen - dropped.shape[1]))
                union = padded if union is None else union | padded.to(union.device)
        return union


def image_index(
    vision: Bool[Tensor, "b n"], frames: Bool[Tensor, "b n"] | None = None
) -> Int[Tensor, "b n"]:
    """Return the index of each token's image, -1 for text.

    A run of visual tokens is an image, and so is each frame of a video. ``frames`` is True where a
    frame begins.
    """
    return torch.where(vision, run_starts(vision, frames).cumsum(-1) - 1, -1)


def spot_index(
    vision: Bool[Tensor, "b n"], frames: Bool[Tensor, "b n"] | None = None
) -> Int[Tensor, "b n"]:
    """Return each visual token's index within its image, from 0; -1 for text."""
    counted = vision.cumsum(-1)
    first = (counted * run_starts(vision, frames)).cummax(-1).values  # of this token's image
    return torch.where(vision, counted - first, -1)


def run_starts(
    vision: Bool[Tensor, "b n"], frames: Bool[Tensor, "b n"] | None = None
) -> Bool[Tensor, "b n"]:
    """Return True at the first token of each image.

    An image is a run of visual tokens, or a frame of a video.
    """
    runs = vision & ~torch.nn.functional.pad(vision, (1, 0))[:, :-1]
    return runs if frames is None else runs | (vision & frames)
