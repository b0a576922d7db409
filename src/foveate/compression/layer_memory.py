"""A layer's memory of its prompt between passes, and the progress of a pass in its prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.compression.early_removal import to_the_right
from foveate.errors import InvalidInput


class Phase(Enum):
    """Progress of a prompt in a forward pass."""

    READING = "the prompt goes on after this pass"
    FINISHING = "this pass holds the prompt's last token, and maybe some beyond"
    ANSWERING = "the prompt was complete before this pass"


class Pass(NamedTuple):
    """Progress of a pass, in columns of the batch.

    ``seen`` tokens have been read, padding and this pass included. ``end`` is the end of the prompt
    that is to be, or was, compressed.
    """

    seen: int
    end: int
    phase: Phase

    @classmethod
    def of(cls, prompt: int, computed: int, new: int) -> Pass:
        """Return the pass that reads ``new`` tokens after ``computed`` ones of a prompt."""
        seen, phase = computed + new, Phase.ANSWERING
        if computed < prompt:
            phase = Phase.FINISHING if seen >= prompt else Phase.READING
        return cls(seen, prompt, phase)

    @property
    def to_read(self) -> int:
        """Tokens of the prompt beyond those seen; negative once the answer has begun."""
        return self.end - self.seen


class OneNumber:
    """Cached test for tensors whose elements are all equal.

    It caches the last tensor's result, because reading a tensor needs a device sync.
    """

    def __init__(self) -> None:
        self._counts: Tensor | None = None
        self._common: int | None = None

    def of(self, counts: Int[Tensor, "*x"] | None) -> int | None:
        """Return the number that all counts are equal to; None if they differ, or without any."""
        if counts is not self._counts:
            numbers = set() if counts is None else set(counts.flatten().tolist())
            self._counts, self._common = counts, numbers.pop() if len(numbers) == 1 else None
        return self._common


@dataclass
class Remembered:
    """One layer's memory of its prompt between passes.

    ``queries`` are the last ones seen, ``images`` the image of each, and ``places`` their
    positions if these need not be consecutive. ``state`` are a running score's sums, one number per
    slot. ``kept`` counts the pairs that each head kept (or its limit) when the layer was last
    compressed. ``tokens`` is each row's budget once the prompt, which ends at ``finished``, was
    processed. ``unread`` is the layer, without its pairs, during a re-prefill.
    """

    queries: Float[Tensor, "b hq w d"] | None = None
    images: Int[Tensor, "b w"] | None = None
    places: Int[Tensor, "b w"] | None = None  # saved files use these fields' names
    state: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Int[Tensor, "b h"] | None = None
    tokens: Int[Tensor, "b"] | None = None
    finished: int = 0
    unread: Layer | None = None
    _common_kept: OneNumber = field(default_factory=OneNumber)

    @property
    def kept_by_each(self) -> int | None:
        """Pairs kept per head if all heads agree, else None. Cached: needs a device sync."""
        return self._common_kept.of(self.kept)

    def remember(
        self,
        q: Float[Tensor, "b hq m d"],
        images: Int[Tensor, "b m"] | None,
        count: int,
        positions: Int[Tensor, "b m"] | None = None,
    ) -> None:
        """Store copies of the last ``count`` queries: a view would keep all of them alive."""
        self.queries = q[:, :, -count:].clone() if count else None
        self.images = None if images is None or not count else images[:, -count:]
        self.places = None if positions is None or not count else positions[:, -count:]

    def add(self, q: Float[Tensor, "b hq m d"], images: Int[Tensor, "b m"], count: int) -> None:
        """Store the last ``count`` of the stored queries and these."""
        if self.queries is not None and self.images is not None:
            q = torch.cat([self.queries, q], dim=2)
            images = torch.cat([self.images, images], dim=1)
        self.remember(q, images, count)

    def with_earlier(self, layer: Layer, count: int) -> Layer:
        """Return the layer with queries of earlier passes if this pass has fewer than ``count``.

        Raises:
            InvalidInput: tokens of this pass see later ones, so that masks of earlier rows are
                unknown.
        """
        if self.queries is None or layer.q.shape[2] >= count:
            return layer
        if layer.slots.mask is not None:
            raise InvalidInput(
                "the last pass of this prompt is shorter than the observation window and holds "
                "tokens that see later ones (images in a prefix) or not all earlier ones (sparse "
                "attention). Pass the prompt in one piece."
            )
        q, q_image = torch.cat([self.queries, layer.q], dim=2), layer.slots.q_image
        if q_image is not None and self.images is not None:
            q_image = torch.cat([self.images, q_image], dim=1)
        if self.places is None:
            q_pos = layer.q_pos[:, -1:] + torch.arange(1 - q.shape[2], 1, device=q.device)
        else:
            q, q_pos, q_image = self._in_front(self.places, layer, q, q_image)
        last = slice(-count, None)
        q_image = None if q_image is None else q_image[:, last]
        slots = replace(layer.slots, q_pos=q_pos[:, last], q_image=q_image)
        return replace(layer, q=q[:, :, last], slots=slots)

    @staticmethod
    def _in_front(
        positions: Int[Tensor, "b w"],
        layer: Layer,
        q: Float[Tensor, "b hq m d"],
        q_image: Int[Tensor, "b m"] | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries, positions and images with tokenless queries moved to the front."""
        q_pos = torch.cat([positions.to(layer.q_pos), layer.q_pos], dim=1)
        order = (q_pos >= 0).long().argsort(dim=1, stable=True)
        q = q.gather(2, order[:, None, :, None].expand_as(q))
        return q, q_pos.gather(1, order), None if q_image is None else q_image.gather(1, order)

    def grown(self, slots: int) -> Mapping[str, Tensor]:
        """Return the running sums, with zeros for new slots."""
        return {
            name: torch.nn.functional.pad(t, (0, more)) if (more := slots - t.shape[-1]) else t
            for name, t in self.state.items()
        }

    def note_kept(self, counts: Int[Tensor, "b h"], kept: Bool[Tensor, "b h n"]) -> None:
        """Record a compression: pairs (or limit) per head, and a mask of the kept slots."""
        self.kept = counts
        if self.state:
            self.compact(kept)

    def compact(self, kept: Bool[Tensor, "b h n"]) -> None:
        """Reduce the running sums to the kept slots."""
        self.state = {name: right_aligned(t, kept) for name, t in self.state.items()}

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Select rows of the batch, in this order."""
        for name in ("queries", "images", "places", "kept", "tokens"):
            if (t := getattr(self, name)) is not None:
                setattr(self, name, t.index_select(0, rows.to(t.device)))
        self.state = {name: t.index_select(0, rows) for name, t in self.state.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors stored for this layer alone."""
        tensors = [*self.state.values(), *([] if self.queries is None else [self.queries])]
        return sum(t.nbytes for t in tensors)


def right_aligned(
    values: Float[Tensor, "b h n"], kept: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h s"]:
    """Return the kept slots' values, right-aligned, with zeros in front."""
    return (values * kept).gather(-1, to_the_right(kept, int(kept.sum(-1).max())))
