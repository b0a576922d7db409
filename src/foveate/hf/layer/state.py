"""What the layers of one cache know together: tokens, the prompt's end, the pass at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from foveate.cache.layer import Layer
from foveate.cache.pairs import Form
from foveate.cache.slots import Slots, known_images
from foveate.cache.tokens import Images, Tokens
from foveate.compression.between_passes import OneNumber
from foveate.compression.pipeline import Kept
from foveate.compression.reading import PromptReading
from foveate.compression.tensors import left_padding
from foveate.errors import UnsupportedCache
from foveate.hf.attention.computed import Computed
from foveate.hf.attention.masks import MaskFacts, PassView, examine, over_columns, slots_of
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


class TurnState(NamedTuple):
    """Where a cache stands in its conversation. A value, as :class:`Tokens` is.

    ``end`` is the column where the prompt at hand ends, None between prompts; ``awaiting`` says
    that the next pass begins one. ``padding_told`` says that a mask [b, n] told where padding
    stands, and not a layer's own. ``coming`` are the images of the next pass, where a caller gives
    them. ``passes`` are inputs that will be read again. ``stats`` are of the latest prompt.
    """

    stats: Stats
    end: int | None = None
    awaiting: bool = True
    padding_told: bool = False
    coming: Images | None = None
    passes: tuple[Any, ...] = ()


class Ongoing:
    """A pass that a cache takes part in. ``reads`` once its layers are being filled, ``done`` when
    all of them are; until it reads, what was known of the cache before can be put back.
    """

    def __init__(self, state: CacheState):
        self._state = state
        self._before = state.tokens, state.turn, state.policy
        self.reads = self.done = False

    def put_back(self) -> None:
        """If nothing has been read."""
        if not self.reads and not self.done:
            tokens, turn, policy = self._before
            self._state.go_back(tokens, turn, policy)

    def finish(self) -> None:
        """All of the pass has been read."""
        self.done = True


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
    """Shared by all layers of one cache: its ``tokens``, its ``turn``, the ``reading`` of its
    prompt, and what is known of the pass at hand alone.
    """

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
        self.tokens = Tokens()
        self._even = OneNumber()  # of the padding
        self._images: tuple[Tensor | None, Images | None] | None = None  # of which vision
        self._columns: Int[Tensor, "b h n"] | None = None
        self.reading = PromptReading(
            self.given, self.depth, strict=self.link.strict, most_heads=self.most_heads
        )
        self._follow(self.given)
        self.turn = TurnState(Stats(self.policy.spec))
        self.reread: RereadPass | None = None  # the pass at hand, if it does not stay
        self.made: Any = None  # who is shown what passes make (foveate.hf.endless.endless.Made)
        self.noted: dict[int, Kept] | None = None  # what is kept, where somebody asks
        self.ongoing: Ongoing | None = None
        self.start_pass()

    def start_pass(self) -> None:
        """Forgets what was known of the latest pass alone."""
        self.view: PassView | None = None
        self.computed: Computed | None = None  # where some tokens are not
        self.before: Layer | None = None  # the latest layer read, where the next one asks for it
        self.asks_before: frozenset[int] = frozenset()  # layers of the model that do, in this pass

    def _follow(self, policy: Policy) -> None:
        self.policy = self.reading.policy = policy
        # asked now, as a traced step could not: cached properties hold a lock until Python 3.12
        _ = policy.prunes, policy.compresses_again, policy.rewrites

    def update_tokens(self, **changes: Any) -> None:
        """Put another table of tokens in place, with these columns changed."""
        self.tokens = self.tokens._replace(**changes)

    def update_turn(self, **changes: Any) -> None:
        """Put another turn in place, with these facts changed."""
        self.turn = self.turn._replace(**changes)

    def note(self, extras: Mapping[str, Any]) -> None:
        """Keep facts with the cache that are not of single tokens."""
        self.tokens = self.tokens.note(extras)

    def take_note(self, name: str) -> Any:
        """Return such a fact, and keep it no more; None if there is none."""
        extras = dict(self.tokens.extras)
        value = extras.pop(name, None)
        self.update_tokens(extras=extras)
        return value

    def go_back(self, tokens: Tokens, turn: TurnState, policy: Policy) -> None:
        """Put back what was known before a pass."""
        self.tokens, self.turn = tokens, turn
        self._follow(policy)
        self.start_pass()

    def divide(self, policy: Policy, forms: tuple[Form, ...] | None) -> None:
        """From now on the policy is this one, which says the shares that the one given leaves open,
        for pairs of these forms; of the first prompt, as what is held stays as it is held.
        """
        self._follow(policy)
        self.reading.forms = forms

    def arm(self, end: int) -> None:
        """A prompt begins that is to be compressed, and ends at this column."""
        self.update_turn(end=end, awaiting=False, stats=Stats(self.policy.spec))

    def begin(self) -> Ongoing:
        """A pass is about to be read.

        Raises:
            UnsupportedCache: it was cut short while it was read, so that layers differ.
        """
        self.recover()
        self.start_pass()
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
        self.tokens = other.tokens
        self.update_turn(awaiting=False, passes=other.turn.passes)

    @property
    def pad(self) -> int | None:
        """The padding in front of every row, where that is one number. The device is asked once."""
        return self._even.of(self.tokens.pad)

    def note_padding(self, mask: Any, b: int, n: int) -> None:
        """Notes where padding stands in a prompt, where the model's own mask tells it. Layers make
        masks of it that say more: those of a sparse attention differ from layer to layer.
        """
        if mask is None or (isinstance(mask, Tensor) and mask.shape == (b, n)):
            self.update_tokens(pad=left_padding(mask, b, n, complete=False))
            self.update_turn(padding_told=True)

    def look(self, own_mask: Any, rows: int, new: int, seen: int, device: torch.device) -> PassView:
        """What the pass sees under the model's own mask: one object for all layers that have the
        same. Where there is nothing to be made of a mask, a traced step remembers nothing, or it
        would be traced anew for every length.
        """
        view = self.view
        shape = rows, new, seen
        if view is None or view.own is not own_mask or view.shape != shape:
            known = own_mask is None or self.turn.end is None or self.turn.padding_told
            pads = self.tokens.pad if known else None
            view = PassView(own_mask, shape, over_columns(own_mask, *shape), pads, device)
            if not torch.compiler.is_compiling():
                self.view = view
        return view

    def padding(self, mask: Any, rows: int, seen: int, new: int, device: torch.device) -> Tensor:
        """The padding in front of each row [b], as the mask of the pass says that is about to be
        read: ``new`` tokens after ``seen`` ones.
        """
        return self.facts(self.look(mask, rows, new, seen + new, device)).pads

    def facts(self, view: PassView) -> MaskFacts:
        """What the mask of the pass says, read once for all layers that have the same."""
        if view.facts is None:
            view.facts = examine(view.mask, view.pads, view.shape, view.device)
            if self.tokens.pad is not view.facts.pads:
                self.update_tokens(pad=view.facts.pads)
        return view.facts

    def images(self) -> Images | None:
        """Image and slot of every token seen; None if nothing told which tokens are visual."""
        tokens, known = self.tokens, self._images
        if not tokens.vision_known or tokens.image is not None:
            return tokens.images
        if known is None or known[0] is not tokens.vision:
            known = self._images = tokens.vision, tokens.images
        return known[1]

    def visual_columns(self) -> Bool[Tensor, "b seen"]:
        """Which tokens seen are visual; raises MissingModality if nothing told."""
        images = self.images()
        return known_images(None if images is None else images[0]) >= 0

    def visual_given(self) -> Int[Tensor, "b"] | None:
        """The visual tokens of each row so far, dropped ones included; None where the policy drops
        none, or nothing told which they are.
        """
        vision = self.tokens.seen_visual
        return None if vision is None or self.policy.prune is None else vision.sum(-1)

    def columns(self, like: Shaped[Tensor, "b h n *d"]) -> Int[Tensor, "b h n"]:
        """The columns of a layer that holds every column: one tensor for all that are alike."""
        known, shape = self._columns, like.shape[:3]  # layers may differ in heads, in their device
        if known is None or known.shape != shape or known.device != like.device:
            columns = torch.arange(shape[2], dtype=torch.int32, device=like.device)  # as held
            known = self._columns = columns.expand(shape)
        return known

    def slots(self, columns: Int[Tensor, "b h n"], view: PassView, queries: int) -> Slots:
        """The slots that stand at these columns, seen by the latest ``queries``. Layers that hold
        every column share them, so that what follows from them is worked out once a pass.
        """
        if columns is self._columns and view.whole is not None and view.whole[0] is columns:
            return view.whole[1]
        facts, images, end = self.facts(view), self.images(), view.shape[2]
        if columns is not self._columns:
            return slots_of(columns, True, (end - queries, end), facts, images, view.mask)
        slots = slots_of(columns, False, (end - queries, end), facts, images, view.mask)
        view.whole = columns, slots
        return slots

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Follows the batch when the cache is reordered, repeated or cut."""
        self.tokens = self.tokens.rows(rows)
        self.update_turn(passes=())  # they are of other rows
        self.view = None
