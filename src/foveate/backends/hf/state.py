"""What the layers of one cache share: the prompt's end, padding, images, slots, and statistics.

All layers that hold every column have the same slots, and share one object, so that what follows
from them is worked out once a pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from foveate.backends.hf.attention.masks import MaskFacts, examine, over_columns, over_slots
from foveate.backends.hf.stats import Stats
from foveate.core.pipeline import Kept
from foveate.core.policy import Policy
from foveate.core.reading import OneNumber, PromptReading
from foveate.core.slots import Slots, once_for_heads
from foveate.core.tensors import image_index, left_padding, spot_index
from foveate.errors import UnsupportedCache

Images = tuple[Int[Tensor, "b s"], Int[Tensor, "b s"]]
"""Of every token seen: its image (-1: text), and which visual token of that image it is."""


class Again(NamedTuple):
    """A pass after a prompt, which does not stay. ``order`` are the places of its tokens as a
    second reading has them, from 0 on, and -1 for padding; None if no score looks on.
    """

    order: Int[Tensor, "b t"] | None


class Ongoing:
    """A pass that a cache takes part in. ``reads`` once its layers are being filled, ``done`` when
    all of them are; until it reads, what was known of the cache before can be put back.
    """

    def __init__(self, state: CacheState):
        self._state = state
        own = {"passes": list(state.passes), "extras": dict(state.extras)}  # changed in place
        self._before = {**vars(state), **own}
        self.reads = self.done = False

    def put_back(self) -> None:
        """If nothing has been read."""
        if not self.reads and not self.done:
            vars(self._state).update(self._before)

    def finish(self) -> None:
        """All of the pass has been read."""
        self.done = True  # first: from here on nothing has to be taken back
        self._before = {}


class Link:
    """Ties caches to the ``compress`` block that they were filled in; copies share it.

    ``projections`` are those of the heads' outputs, by layer of the model, if the policy asks.
    ``strict`` refuses budgets below what is always kept.
    """

    def __init__(self, strict: bool = False) -> None:
        self.open = True
        self.strict = strict
        self.projections: dict[int, nn.Module] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A cache that comes out of a pickle is in no block, and has nothing of the model; the next
        block under its policy takes it in.
        """
        return (_left, ())

    def refuse(self) -> NoReturn:
        """Raises UnsupportedCache: the block was left."""
        raise UnsupportedCache(
            "this compressed cache belongs to a compress() block that was left, and the model "
            "alone cannot read it. Use it inside a compress(model, policy) block."
        )


def _left() -> Link:
    """The link of a block that was left."""
    link = Link()
    link.open = False
    return link


class CacheState:
    """Shared by all layers of one cache."""

    def __init__(
        self,
        policy: Policy,
        link: Link,
        depth: int,
        lends: bool = False,
        most_heads: int | None = None,
    ):
        self.policy = policy
        self.most_heads = None if lends else most_heads  # of all layers: what others read stays
        # found now, as a traced step could not: cached properties hold a lock until Python 3.12
        self.rewrites = policy.rewrites
        _ = policy.prunes, policy.compresses_again
        self.lends = lends  # whether other layers of the model read the pairs of some
        self.link = link
        self.depth = depth
        self.layers: list[Any] = []  # this cache's FoveateLayers, by ordinal
        self.clear()

    def clear(self) -> None:
        """Forgets the conversation."""
        self.prompt_end: int | None = None  # column where the prompt ends; None: nothing to do
        self.awaiting = True  # the next pass begins a prompt that is to be compressed
        self.vision: Bool[Tensor, "b seen"] | None = None
        self.vision_known = True
        self.frames: Bool[Tensor, "b seen"] | None = None  # where those of videos begin
        self.pads: Int[Tensor, "b"] | None = None
        self._even = OneNumber()  # of pads
        self.pads_told = False  # by a mask [b, n], not read off a layer's
        self.passes: list[Any] = []  # of what was not read again yet, where it may be
        self.again: Again | None = None  # while it is
        self.noted: dict[int, Kept] | None = None  # what is kept, where somebody asks
        self.extras: dict[str, Any] = {}  # facts that the model itself keeps (M-RoPE deltas)
        self.ongoing: Ongoing | None = None
        self.reading = PromptReading(
            self.policy, self.depth, strict=self.link.strict, most_heads=self.most_heads
        )
        self.stats = Stats(self.policy.spec)
        self.slots = SlotsOfPass()
        self._images: tuple[Tensor, Images] | None = None  # of which vision
        self._mask: Tensor | None = None
        self._own: tuple[Any, int, int, int] | None = None  # a mask of the model's own kind
        self._mask_of_own: Tensor | None = None
        self._facts: MaskFacts | None = None
        self._shape: tuple[int, int, int] | None = None

    def arm(self, end: int) -> None:
        """A prompt begins that is to be compressed, and ends at this column."""
        self.prompt_end, self.awaiting = end, False
        self.stats = Stats(self.policy.spec)

    def begin(self) -> Ongoing:
        """A pass is about to be read.

        Raises:
            UnsupportedCache: it was cut short while it was read, so that layers differ.
        """
        last = self.ongoing
        if last is not None and not last.done:
            if last.reads:
                raise UnsupportedCache(
                    "a pass through this cache was cut short by an exception or an interrupt, so "
                    "some of its layers have read tokens that others have not. Read the prompt "
                    "into a new cache, or go on with a session.fork() made before."
                )
            last.put_back()
        self.ongoing = Ongoing(self)
        return self.ongoing

    def follow(self, other: CacheState) -> None:
        """Takes over what is known of a prompt that was read into another cache."""
        self.pads, self.vision, self.frames = other.pads, other.vision, other.frames
        self.vision_known, self.awaiting = other.vision_known, False
        self.passes = list(other.passes)
        self.extras = dict(other.extras)

    def put_back(self, pads: Int[Tensor, "b"] | None) -> None:
        """Forgets the masks of a pass that does not stay."""
        self.pads, self._facts, self._mask, self._own = pads, None, None, None

    @property
    def pad(self) -> int | None:
        """The padding in front of every row, where that is one number. The device is asked once."""
        return self._even.of(self.pads)

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

    def note_padding(self, mask: Any, b: int, n: int) -> None:
        """Notes where padding stands in a prompt, where the model's own mask tells it. Layers make
        masks of it that say more: those of a sparse attention differ from layer to layer.
        """
        if mask is None or (isinstance(mask, Tensor) and mask.shape == (b, n)):
            self.pads, self.pads_told = left_padding(mask, b, n, whole=False), True

    def facts(
        self, mask: Tensor | None, shape: tuple[int, int, int], device: torch.device
    ) -> MaskFacts:
        """The facts of this pass's mask, read once for all layers."""
        if self._facts is None or mask is not self._mask or shape != self._shape:
            told = mask is None or self.prompt_end is None or self.pads_told
            known = self.pads if told else None
            self._facts = examine(mask, known, shape, device)
            self._mask, self._shape = mask, shape
            self.pads = self._facts.pads
        return self._facts

    def extend_vision(
        self, vision: Bool[Tensor, "b t"] | None, frames: Bool[Tensor, "b t"] | None = None
    ) -> None:
        """Notes which of the new tokens are visual (None: unknown), and where frames begin."""
        if vision is not None and (frames is not None or self.frames is not None):
            none = torch.zeros_like(vision)
            before = none[:, :0] if self.vision is None else torch.zeros_like(self.vision)
            before = before if self.frames is None else self.frames
            self.frames = torch.cat([before, none if frames is None else frames], dim=1)
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
            found = (
                image_index(self.vision, self.frames),
                spot_index(self.vision, self.frames),
            )
            self._images = (self.vision, found)
        return self._images[1]

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Follows the batch when the cache is reordered, repeated or cut."""
        self.passes = []  # they are of other rows
        if self.vision is not None and self.vision.shape[0] > int(rows.max()):
            self.vision = self.vision.index_select(0, rows.to(self.vision.device))
            if self.frames is not None:
                self.frames = self.frames.index_select(0, rows.to(self.frames.device))
        if self.pads is not None:
            self.pads = self.pads.index_select(0, rows.to(self.pads.device))
        self._facts = self._mask = None
        for key, value in self.extras.items():
            if isinstance(value, Tensor) and value.shape[0] > int(rows.max()):
                self.extras[key] = value.index_select(0, rows.to(value.device))


class SlotsOfPass:
    """The slots of a pass's layers; those of layers that hold every column are remembered."""

    def __init__(self) -> None:
        self._columns: Int[Tensor, "b h n"] | None = None
        self._of: tuple[object, object, object] = (None, None, None)
        self._found: Slots | None = None

    def columns(self, like: Shaped[Tensor, "b h n *d"]) -> Int[Tensor, "b h n"]:
        """The columns of a layer that holds every column: one tensor for all that are alike."""
        known, shape = self._columns, like.shape[:3]  # layers may differ in heads, in their device
        if known is None or known.shape != shape or known.device != like.device:
            columns = torch.arange(shape[2], dtype=torch.int32, device=like.device)  # as held
            known = self._columns = columns.expand(shape)
        return known

    def of(
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
