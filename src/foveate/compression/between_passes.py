"""What one layer of a prompt remembers from pass to pass, and where a pass stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.compression.shedding import to_the_right
from foveate.errors import InvalidInput


class Phase(Enum):
    """Where a prompt stands in a forward pass that reads some tokens."""

    READING = "the prompt goes on after this pass"
    FINISHING = "this pass holds the prompt's last token, and maybe some beyond"
    ANSWERING = "the prompt was complete before this pass"


class Pass(NamedTuple):
    """Where a pass stands, in columns of the batch: ``seen`` tokens have been read, padding and
    this pass included, and the prompt that is to be compressed, or was, ends at ``end``.
    """

    seen: int
    end: int
    phase: Phase

    @classmethod
    def of(cls, prompt: int, computed: int, new: int) -> Pass:
        """Of a prompt of which ``computed`` tokens had been read when ``new`` ones came."""
        seen, phase = computed + new, Phase.ANSWERING
        if computed < prompt:
            phase = Phase.FINISHING if seen >= prompt else Phase.READING
        return cls(seen, prompt, phase)

    @property
    def to_read(self) -> int:
        """Tokens of the prompt beyond those seen; negative where the answer has begun."""
        return self.end - self.seen


class OneNumber:
    """The number that all counts of a tensor are, if they are; of the same tensor the device is
    asked once.
    """

    def __init__(self) -> None:
        self._asked: Tensor | None = None
        self._found: int | None = None

    def of(self, counts: Int[Tensor, "*x"] | None) -> int | None:
        """None where they differ, and without any."""
        if counts is not self._asked:
            numbers = set() if counts is None else set(counts.flatten().tolist())
            self._asked, self._found = counts, numbers.pop() if len(numbers) == 1 else None
        return self._found


@dataclass
class Remembered:
    """What one layer remembers of its prompt between passes.

    ``queries`` are the last that were seen, ``images`` the image of each, and ``places`` their
    positions where they need not be consecutive; ``state`` are a running
    score's sums, one number a slot; ``kept`` counts the pairs that each head kept, or was to
    keep at most, when the layer was compressed last; ``tokens`` is each row's budget once the
    prompt has been dealt with, which ends at ``finished``; ``unread`` is the layer, without its
    pairs, while the prompt is read again.
    """

    queries: Float[Tensor, "b hq w d"] | None = None
    images: Int[Tensor, "b w"] | None = None
    places: Int[Tensor, "b w"] | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    kept: Int[Tensor, "b h"] | None = None
    tokens: Int[Tensor, "b"] | None = None
    finished: int = 0
    unread: Layer | None = None
    _even: OneNumber = field(default_factory=OneNumber)  # of ``kept``

    @property
    def kept_by_each(self) -> int | None:
        """What every head kept, where that is one number. The device is asked once."""
        return self._even.of(self.kept)

    def remember(
        self,
        q: Float[Tensor, "b hq m d"],
        images: Int[Tensor, "b m"] | None,
        wanted: int,
        places: Int[Tensor, "b m"] | None = None,
    ) -> None:
        """The last ``wanted`` queries, on their own: a view would hold all of them."""
        self.queries = q[:, :, -wanted:].clone() if wanted else None
        self.images = None if images is None or not wanted else images[:, -wanted:]
        self.places = None if places is None or not wanted else places[:, -wanted:]

    def add(self, q: Float[Tensor, "b hq m d"], images: Int[Tensor, "b m"], wanted: int) -> None:
        """The same of the queries so far and those of a pass of which nothing else is needed."""
        if self.queries is not None and self.images is not None:
            q = torch.cat([self.queries, q], dim=2)
            images = torch.cat([self.images, images], dim=1)
        self.remember(q, images, wanted)

    def with_earlier(self, layer: Layer, wanted: int) -> Layer:
        """The layer with queries of earlier passes where this pass has fewer than ``wanted``.

        Raises:
            InvalidInput: tokens of this pass see later ones, so that earlier rows are not known.
        """
        if self.queries is None or layer.q.shape[2] >= wanted:
            return layer
        if layer.slots.mask is not None:
            raise InvalidInput(
                "the last pass of this prompt is shorter than the observation window and holds "
                "tokens that see later ones (images in a prefix). Pass the prompt in one piece."
            )
        q, q_image = torch.cat([self.queries, layer.q], dim=2), layer.slots.q_image
        if q_image is not None and self.images is not None:
            q_image = torch.cat([self.images, q_image], dim=1)
        if self.places is None:
            q_pos = layer.q_pos[:, -1:] + torch.arange(1 - q.shape[2], 1, device=q.device)
        else:
            q, q_pos, q_image = self._in_front(self.places, layer, q, q_image)
        some = slice(-wanted, None)
        q_image = None if q_image is None else q_image[:, some]
        slots = replace(layer.slots, q_pos=q_pos[:, some], q_image=q_image)
        return replace(layer, q=q[:, :, some], slots=slots)

    @staticmethod
    def _in_front(
        places: Int[Tensor, "b w"],
        layer: Layer,
        q: Float[Tensor, "b hq m d"],
        q_image: Int[Tensor, "b m"] | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """All these queries, their positions and images: those that stand for no token in front."""
        q_pos = torch.cat([places.to(layer.q_pos), layer.q_pos], dim=1)
        order = (q_pos >= 0).long().argsort(dim=1, stable=True)
        q = q.gather(2, order[:, None, :, None].expand_as(q))
        return q, q_pos.gather(1, order), None if q_image is None else q_image.gather(1, order)

    def grown(self, slots: int) -> Mapping[str, Tensor]:
        """The running sums, with zeros for the slots that are new."""
        return {
            name: torch.nn.functional.pad(t, (0, more)) if (more := slots - t.shape[-1]) else t
            for name, t in self.state.items()
        }

    def note_kept(self, counts: Int[Tensor, "b h"], kept: Bool[Tensor, "b h n"]) -> None:
        """The layer was compressed: how many pairs its heads keep, or were to keep, and which."""
        self.kept = counts
        if self.state:
            self.compact(kept)

    def compact(self, kept: Bool[Tensor, "b h n"]) -> None:
        """The running sums of the kept slots alone."""
        self.state = {name: right_aligned(t, kept) for name, t in self.state.items()}

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """The batch becomes these rows of it."""
        for name in ("queries", "images", "places", "kept", "tokens"):
            if (t := getattr(self, name)) is not None:
                setattr(self, name, t.index_select(0, rows.to(t.device)))
        self.state = {name: t.index_select(0, rows) for name, t in self.state.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are remembered of this layer alone."""
        held = [*self.state.values(), *([] if self.queries is None else [self.queries])]
        return sum(t.nbytes for t in held)


def right_aligned(
    values: Float[Tensor, "b h n"], kept: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h s"]:
    """The kept slots' values, right-aligned; zeros stand in front."""
    return (values * kept).gather(-1, to_the_right(kept, int(kept.sum(-1).max())))
