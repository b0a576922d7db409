"""What is known of every token that a cache has seen, as one table.

The table is a value: nothing in it is written to, and every method returns another one. Going back
to what was known before is to keep the earlier table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

Images = tuple[Int[Tensor, "b s"], Int[Tensor, "b s"]]
"""Of every token seen: its image (-1: text), and which visual token of that image it is."""

_OF_TOKENS = ("vision", "frame", "image", "slot")
"""Fields of [b, seen]."""


class Tokens(NamedTuple):
    """One column per token seen, padding included; one row per row of the batch.

    ``vision`` marks visual tokens, and is known if every pass said which of its own are
    (``vision_known``). ``frame`` marks the first token of each frame of a video. ``image`` and
    ``slot`` are given by callers that know them (streams); otherwise they follow from the two.
    ``position`` is noted for one row, on each axis, where somebody asks. ``pad`` counts the padding
    in front of each row. ``dropped`` marks, by layer of the model, tokens that this layer and later
    ones never compute. ``extras`` are what the model itself notes of each row, such as the offsets
    of M-RoPE. ``forgotten`` counts tokens that are columns no more, and ``shift`` is how far
    positions are ahead of columns because of it.
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
        """Add a pass: which of its tokens are visual (None: unknown), where frames begin, and their
        ``images`` if the caller gives them; where earlier passes did and this one does not, its
        tokens are text.
        """
        if vision is None:
            return self._replace(vision_known=False)
        image, slot = self.image, self.slot
        if image is not None and slot is not None:
            text = torch.full_like(vision, -1, dtype=torch.long)
            new = (text, text) if images is None else images
            image, slot = torch.cat([image, new[0]], dim=1), torch.cat([slot, new[1]], dim=1)
        whole = vision if self.vision is None else torch.cat([self.vision, vision], dim=1)
        return self._replace(
            vision=whole, frame=self._frames(vision, frame), image=image, slot=slot
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

    def place(self, position: Int[Tensor, "axes t"]) -> Tokens:
        """Add the positions of a pass, on one axis or on several."""
        before = position[:, :0] if self.position is None else self.position
        axes = max(len(before), len(position))
        both = [before.expand(axes, -1), position.expand(axes, -1)]
        return self._replace(position=torch.cat(both, dim=1))

    def drop_before(self, layer: int, dropped: Bool[Tensor, "b s"]) -> Tokens:
        """Add tokens that this layer of the model and later ones do not compute."""
        whole = dropped.clone()
        if (known := self.dropped.get(layer)) is not None:
            whole[:, : known.shape[1]] |= known
        return self._replace(dropped={**self.dropped, layer: whole})

    def note(self, extras: Mapping[str, Any]) -> Tokens:
        """Add facts of the model's own, or replace them."""
        return self._replace(extras={**self.extras, **extras})

    # Rows and columns

    def rows(self, index: Int[Tensor, "r"]) -> Tokens:
        """Return the table of these rows. What is noted once for all rows stays."""
        most = int(index.max())

        def some(t: Any) -> Any:
            if not isinstance(t, Tensor) or t.shape[0] <= most:
                return t
            return t.index_select(0, index.to(t.device))

        return self._replace(
            **{name: some(getattr(self, name)) for name in (*_OF_TOKENS, "pad")},
            dropped={layer: some(t) for layer, t in self.dropped.items()},
            extras={name: some(t) for name, t in self.extras.items()},
        )

    def drop(self, held: Bool[Tensor, "seen"]) -> Tokens:
        """Return the table of the columns that are held; the others count as forgotten."""

        def some(t: Any) -> Any:
            if t is None:
                return None
            whole = torch.nn.functional.pad(t, (0, len(held) - t.shape[1]))
            return whole[:, held.to(t.device)]

        gone = len(held) - int(held.sum())
        return self._replace(
            **{name: some(getattr(self, name)) for name in (*_OF_TOKENS, "position")},
            dropped={layer: some(t) for layer, t in self.dropped.items()},
        ).move(gone)

    def concat(
        self,
        images: Images,
        own: Int[Tensor, "seen"],
        new: Int[Tensor, "u"],
    ) -> Tokens:
        """Return the table with visual tokens that come back: ``images`` [1, u] are theirs,
        ``new`` the columns that they get, ``own`` those that the tokens of this table get.
        Positions are known no more.
        """
        end = len(own) + int((~torch.isin(new, own)).sum())

        def wide(t: Tensor, fill: Any, back: Any) -> Tensor:
            whole = t.new_full((1, end), fill)
            whole[:, new.to(t.device)] = back
            whole[:, own.to(t.device)] = t
            return whole

        image, slot = self.image, self.slot
        if image is not None and slot is not None:
            image, slot = wide(image, -1, images[0].to(image)), wide(slot, -1, images[1].to(slot))
        return self._replace(
            vision=None if self.vision is None else wide(self.vision, False, True),
            frame=None if self.frame is None else wide(self.frame, False, False),
            image=image,
            slot=slot,
            position=None,
        ).move(len(own) - end)

    def move(self, gone: int) -> Tokens:
        """Return the table where so many more tokens are columns no more (fewer: negative)."""
        offsets = {name: t + gone for name, t in self.extras.items() if isinstance(t, Tensor)}
        return self._replace(forgotten=self.forgotten + gone, shift=self.shift + gone).note(offsets)

    def ahead(self, shift: int) -> Tokens:
        """Return the table where positions are so far ahead of columns, in every row."""
        tensors = {name: t for name, t in self.extras.items() if isinstance(t, Tensor)}
        offsets = {name: torch.full_like(t, shift) for name, t in tensors.items()}
        return self._replace(shift=shift).note(offsets)

    # What follows

    def padding(self, like: Shaped[Tensor, "b *_"]) -> Int[Tensor, "b"]:
        """Return the padding in front of each row, on the device of a tensor of such rows; zeros
        where none is noted.
        """
        if self.pad is None:
            return torch.zeros(len(like), dtype=torch.int64, device=like.device)
        return self.pad.to(like.device)

    @property
    def images(self) -> Images | None:
        """Image and slot of every token; None if nothing told which tokens are visual."""
        if self.image is not None and self.slot is not None:
            return self.image, self.slot
        if not self.vision_known or self.vision is None:
            return None
        return image_index(self.vision, self.frame), spot_index(self.vision, self.frame)

    @property
    def seen_visual(self) -> Bool[Tensor, "b seen"] | None:
        """``vision`` where every pass has told it."""
        return self.vision if self.vision_known else None

    def dropped_before(self, layer: int, seen: int) -> Bool[Tensor, "b n"] | None:
        """Which of the ``seen`` columns a layer of the model never computed; None if it computed
        all.
        """
        whole: Tensor | None = None
        for before, which in self.dropped.items():
            if before <= layer:
                padded = torch.nn.functional.pad(which, (0, seen - which.shape[1]))
                whole = padded if whole is None else whole | padded.to(whole.device)
        return whole


def image_index(
    vision: Bool[Tensor, "b n"], frames: Bool[Tensor, "b n"] | None = None
) -> Int[Tensor, "b n"]:
    """Which image each token belongs to, -1 for text: a run of visual tokens is an image, and each
    frame of a video is one. ``frames`` is True where a frame begins.
    """
    return torch.where(vision, run_starts(vision, frames).cumsum(-1) - 1, -1)


def spot_index(
    vision: Bool[Tensor, "b n"], frames: Bool[Tensor, "b n"] | None = None
) -> Int[Tensor, "b n"]:
    """Which visual token of its image each is, from 0; -1 for text."""
    counted = vision.cumsum(-1)
    first = (counted * run_starts(vision, frames)).cummax(-1).values  # of this token's image
    return torch.where(vision, counted - first, -1)


def run_starts(
    vision: Bool[Tensor, "b n"], frames: Bool[Tensor, "b n"] | None = None
) -> Bool[Tensor, "b n"]:
    """True at the first token of each image: a run of visual tokens, or a frame of a video."""
    runs = vision & ~torch.nn.functional.pad(vision, (1, 0))[:, :-1]
    return runs if frames is None else runs | (vision & frames)
