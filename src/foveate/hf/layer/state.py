"""What the layers of one cache know together of its prompt: where it ends, padding, which tokens
are visual, statistics.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from foveate.cache.layer import Layer
from foveate.cache.pairs import Form
from foveate.cache.slots import known_images
from foveate.compression.between_passes import OneNumber
from foveate.compression.pipeline import Kept
from foveate.compression.reading import PromptReading
from foveate.compression.tensors import left_padding
from foveate.errors import UnsupportedCache
from foveate.hf.attention.computed import Computed, Images
from foveate.hf.attention.masks import MaskFacts
from foveate.hf.layer.shared import SharedByLayers
from foveate.hf.layer.stats import Stats
from foveate.policies.policy import Policy


class RereadPass(NamedTuple):
    """A pass after a prompt, which does not stay. ``order`` are the places of its tokens as a
    second reading has them, from 0 on, and -1 for padding; None if no score looks on. A pass of
    which gradients are asked notes in ``outputs``, by layer, what the score is to see, and the
    heads' outputs, and shows nothing itself.
    """

    order: Int[Tensor, "b t"] | None
    outputs: dict[int, tuple[Layer, Tensor]] | None = None


class Ongoing:
    """A pass that a cache takes part in. ``reads`` once its layers are being filled, ``done`` when
    all of them are; until it reads, what was known of the cache before can be put back.
    """

    def __init__(self, state: CacheState):
        self._state = state
        changed = {"extras": dict(state.extras), "dropped": dict(state.dropped)}
        own = {"passes": list(state.passes), **changed}  # in place
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

    ``projections`` are those of the heads' outputs, by layer of the model, if the policy asks, and
    ``residual_norms`` those of the residual stream that each layer reads in the pass at hand.
    ``strict`` refuses budgets below what is always kept. With ``keeps_scores`` layers remember the
    scores of the pairs that they keep.
    """

    def __init__(self, strict: bool = False) -> None:
        self.open = True
        self.strict = strict
        self.keeps_scores = False
        self.projections: dict[int, nn.Module] = {}
        self.residual_norms: dict[int, Tensor] = {}

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
        shares_kv: bool = False,
        most_heads: int | None = None,
    ):
        self.given = policy
        self.most_heads = None if shares_kv else most_heads  # of all layers: what others read stays
        self.shares_kv = shares_kv  # whether other layers of the model read the pairs of some
        self.link = link
        self.depth = depth
        self.layers: list[Any] = []  # this cache's FoveateLayers, by ordinal
        self.clear()

    def clear(self) -> None:
        """Forgets the conversation."""
        self._follow(self.given)
        self.prompt_end: int | None = None  # column where the prompt ends; None: nothing to do
        self.awaiting = True  # the next pass begins a prompt that is to be compressed
        self.vision: Bool[Tensor, "b seen"] | None = None
        self.vision_known = True
        self.frames: Bool[Tensor, "b seen"] | None = None  # where those of videos begin
        self.images_given: Images | None = None  # of every token seen, where somebody says it
        self.coming: Images | None = None  # the same of the next pass alone
        self.forgotten = 0  # tokens that no layer holds and that are counted no more
        self.shift = 0  # of positions beyond columns, where they stand on one axis
        self.places: Int[Tensor, "axes seen"] | None = None  # positions, where somebody asks
        self.pads: Int[Tensor, "b"] | None = None
        self._even = OneNumber()  # of pads
        self.pads_told = False  # by a mask [b, n], not read off a layer's
        self.passes: list[Any] = []  # of what was not read again yet, where it may be
        self.reread: RereadPass | None = None  # while it is
        self.made: Any = None  # who is shown what passes make (foveate.hf.endless.fetched.Made)
        self.noted: dict[int, Kept] | None = None  # what is kept, where somebody asks
        self.computed: Computed | None = None  # of the pass at hand, where some tokens are not
        self.before: Layer | None = None  # the latest layer read, where the next one asks for it
        self.asks_before: frozenset[int] = frozenset()  # layers of the model that do, in this pass
        self.dropped: dict[int, Bool[Tensor, "b seen"]] = {}  # before which layer of the model
        self.extras: dict[str, Any] = {}  # facts that the model itself keeps (M-RoPE deltas)
        self.ongoing: Ongoing | None = None
        self.reading = PromptReading(
            self.policy, self.depth, strict=self.link.strict, most_heads=self.most_heads
        )
        self.stats = Stats(self.policy.spec)
        self.shared = SharedByLayers()

    def _follow(self, policy: Policy) -> None:
        self.policy = policy
        # found now, as a traced step could not: cached properties hold a lock until Python 3.12
        self.rewrites = policy.rewrites
        _ = policy.prunes, policy.compresses_again
        for layer in self.layers:
            layer.policy = policy

    @property
    def divided(self) -> bool:
        """Whether its policy leaves nothing open."""
        return not self.policy.left_open

    def divide(self, policy: Policy, forms: tuple[Form, ...] | None) -> None:
        """From now on the policy is this one, which says the shares that the one given leaves open,
        for pairs of these forms; of the first prompt, as what is held stays as it is held.
        """
        self._follow(policy)
        self.reading.policy, self.reading.forms = policy, forms

    def arm(self, end: int) -> None:
        """A prompt begins that is to be compressed, and ends at this column."""
        self.prompt_end, self.awaiting = end, False
        self.stats = Stats(self.policy.spec)

    def begin(self) -> Ongoing:
        """A pass is about to be read.

        Raises:
            UnsupportedCache: it was cut short while it was read, so that layers differ.
        """
        self.recover()
        self.computed, self.before, self.asks_before = None, None, frozenset()
        self.ongoing = Ongoing(self)
        return self.ongoing

    def recover(self) -> None:
        """Restore what a pass noted that was interrupted before it reached the layers.

        Raises:
            UnsupportedCache: it was interrupted while the layers read, so they differ.
        """
        if self.ongoing is None or self.ongoing.done:
            return
        if self.ongoing.reads:
            raise UnsupportedCache(
                "a pass through this cache was cut short by an exception or an interrupt, so "
                "some of its layers have read tokens that others have not. Read the prompt "
                "into a new cache, or go on with a session.fork() made before."
            )
        self.ongoing.put_back()

    def follow(self, other: CacheState) -> None:
        """Takes over what is known of a prompt that was read into another cache."""
        self.pads, self.vision, self.frames = other.pads, other.vision, other.frames
        self.vision_known, self.awaiting = other.vision_known, False
        self.passes, self.dropped = list(other.passes), dict(other.dropped)
        self.extras = dict(other.extras)

    def put_back(self, pads: Int[Tensor, "b"] | None) -> None:
        """Forgets the masks of a pass that does not stay."""
        self.pads, self.shared = pads, SharedByLayers()

    @property
    def pad(self) -> int | None:
        """The padding in front of every row, where that is one number. The device is asked once."""
        return self._even.of(self.pads)

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
        facts = self.shared.known_facts(mask, shape)
        if facts is None:
            complete = mask is None or self.prompt_end is None or self.pads_told
            facts = self.shared.read_facts(mask, shape, self.pads if complete else None, device)
            self.pads = facts.pads
        return facts

    def padding(
        self, mask: Tensor | None, rows: int, seen: int, new: int, device: torch.device
    ) -> Int[Tensor, "b"]:
        """The padding in front of each row, as the mask of the pass says that is about to be read:
        ``new`` tokens after ``seen`` ones.
        """
        columns = seen + new
        whole = self.shared.over_columns(mask, rows, new, columns)
        return self.facts(whole, (rows, new, columns), device).pads

    def extend_vision(
        self, vision: Bool[Tensor, "b t"] | None, frames: Bool[Tensor, "b t"] | None = None
    ) -> None:
        """Notes which of the new tokens are visual (None: unknown), and where frames begin."""
        if vision is not None and (frames is not None or self.frames is not None):
            none = torch.zeros_like(vision)
            before = none[:, :0] if self.vision is None else torch.zeros_like(self.vision)
            before = before if self.frames is None else self.frames
            self.frames = torch.cat([before, none if frames is None else frames], dim=1)
        self._extend_told(vision)
        if vision is None:
            self.vision_known = False
        elif self.vision is None:
            self.vision = vision
        else:
            self.vision = torch.cat([self.vision, vision], dim=1)

    def _extend_told(self, vision: Bool[Tensor, "b t"] | None) -> None:
        """What is told of a pass's images is of that pass alone; the next one's are text."""
        if self.images_given is None or vision is None:
            return
        text = torch.full_like(vision, -1, dtype=torch.long)
        now, self.coming = self.coming or (text, text), None
        image, spot = (torch.cat(both, dim=1) for both in zip(self.images_given, now, strict=True))
        self.images_given = image, spot

    def images(self) -> Images | None:
        """Image and spot of every token seen; None if nothing told which tokens are visual."""
        if self.images_given is not None:
            return self.images_given
        if not self.vision_known or self.vision is None:
            return None
        return self.shared.images(self.vision, self.frames)

    def visual_columns(self) -> Bool[Tensor, "b seen"]:
        """Which tokens seen are visual; raises MissingModality if nothing told."""
        images = self.images()
        return known_images(None if images is None else images[0]) >= 0

    def visual_given(self) -> Int[Tensor, "b"] | None:
        """The visual tokens of each row so far, dropped ones included; None where the policy drops
        none, or nothing told which they are.
        """
        known = self.vision is not None and self.vision_known and self.policy.prune is not None
        return self.vision.sum(-1) if known else None  # type: ignore[union-attr]

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Follows the batch when the cache is reordered, repeated or cut."""
        self.passes = []  # they are of other rows
        if self.vision is not None and self.vision.shape[0] > int(rows.max()):
            self.vision = self.vision.index_select(0, rows.to(self.vision.device))
            if self.frames is not None:
                self.frames = self.frames.index_select(0, rows.to(self.frames.device))
        if self.images_given is not None:
            image, spot = (t.index_select(0, rows.to(t.device)) for t in self.images_given)
            self.images_given = image, spot
        if self.pads is not None:
            self.pads = self.pads.index_select(0, rows.to(self.pads.device))
        for before, which in self.dropped.items():
            self.dropped[before] = which.index_select(0, rows.to(which.device))
        self.shared = SharedByLayers()
        for key, value in self.extras.items():
            if isinstance(value, Tensor) and value.shape[0] > int(rows.max()):
                self.extras[key] = value.index_select(0, rows.to(value.device))
