"""What the layers of one cache share: the prompt's end, padding, images, and statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.backends.hf.masks import MaskFacts, examine
from foveate.backends.hf.origins import Images, OriginsOfPass
from foveate.backends.hf.stats import Stats
from foveate.core.compress import keep
from foveate.core.errors import UnsupportedCache
from foveate.core.layer import Scored, WorkedOut
from foveate.core.policy import Policy
from foveate.core.tensors import image_index, spot_index

if TYPE_CHECKING:
    from foveate.backends.hf.layer import FoveateLayer


class Link:
    """Ties caches to the ``compress`` block that they were filled in; copies share it."""

    def __init__(self) -> None:
        self.open = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        return self

    def check(self) -> None:
        """Raises UnsupportedCache after the block was left."""
        if not self.open:
            raise UnsupportedCache(
                "this compressed cache belongs to a compress() block that was left, and the model "
                "alone cannot read it. Use it inside a compress(model, policy) block."
            )


class CacheState:
    """Shared by all layers of one cache."""

    def __init__(self, policy: Policy, link: Link, depth: int):
        self.policy = policy
        self.link = link
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        """Forgets the conversation."""
        self.prompt_end: int | None = None  # column where the prompt ends; None: nothing to do
        self.awaiting = True  # the next pass begins a prompt that is to be compressed
        self.vision: Bool[Tensor, "b seen"] | None = None
        self.vision_known = True
        self.pads: Int[Tensor, "b"] | None = None
        self.extras: dict[str, Any] = {}  # facts that the model itself keeps (M-RoPE deltas)
        self.notes: list[Mapping[str, Tensor]] = []
        self.waiting: list[tuple[FoveateLayer, Scored]] = []
        self.stats = Stats(self.policy.spec)
        self.origins = OriginsOfPass()
        self.worked_out: WorkedOut = {}  # by the layers of a pass, for all of them
        self._images: tuple[Tensor, Images] | None = None  # of which vision
        self._mask: Tensor | None = None
        self._facts: MaskFacts | None = None
        self._shape: tuple[int, int, int] | None = None

    def follow(self, other: CacheState) -> None:
        """Takes over what is known of a prompt that was read into another cache."""
        self.pads, self.vision = other.pads, other.vision
        self.vision_known, self.awaiting = other.vision_known, False
        self.extras = dict(other.extras)

    def facts(
        self, mask: Tensor | None, shape: tuple[int, int, int], device: torch.device
    ) -> MaskFacts:
        """The facts of this pass's mask, read once for all layers."""
        if self._facts is None or mask is not self._mask or shape != self._shape:
            known = self.pads if mask is None or self.prompt_end is None else None
            self._facts = examine(mask, known, shape, device)
            self._mask, self._shape = mask, shape
            self.pads = self._facts.pads
        return self._facts

    def extend_vision(self, vision: Bool[Tensor, "b t"] | None) -> None:
        """Notes which of the new tokens are visual; None: unknown."""
        if vision is None:
            self.vision_known = False
        elif self.vision is None:
            self.vision = vision
        else:
            self.vision = torch.cat([self.vision, vision], dim=1)

    def images(self) -> Images | None:
        """Image and spot of every token seen, worked out once for all layers of a pass; None if
        nothing told which tokens are visual.
        """
        if not self.vision_known or self.vision is None:
            return None
        if self._images is None or self._images[0] is not self.vision:
            found = (image_index(self.vision), spot_index(self.vision))
            self._images = (self.vision, found)
        return self._images[1]

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Follows the batch when the cache is reordered, repeated or cut."""
        if self.vision is not None and self.vision.shape[0] > int(rows.max()):
            self.vision = self.vision.index_select(0, rows.to(self.vision.device))
        if self.pads is not None:
            self.pads = self.pads.index_select(0, rows.to(self.pads.device))
        self._facts = self._mask = None
        for key, value in self.extras.items():
            if isinstance(value, Tensor) and value.shape[0] > int(rows.max()):
                self.extras[key] = value.index_select(0, rows.to(value.device))

    def wait_for_all(self, layer: FoveateLayer, scored: Scored | None) -> None:
        """Model scope: collects the layers' scores, and compresses all after the last one's."""
        if scored is not None:
            self.waiting.append((layer, scored))
        if layer.place != self.depth - 1:
            return
        waiting, self.waiting = self.waiting, []
        if waiting:
            kept = keep(self.policy, [one for _, one in waiting])
            for (owner, _), one in zip(waiting, kept, strict=True):
                owner.hold(one)
