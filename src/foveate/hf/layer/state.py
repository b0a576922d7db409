"""State shared by the layers of one cache: tokens, the prompt's end, the current pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from foveate.cache.layer import Layer
from foveate.cache.pairs import Form
from foveate.cache.slots import Slots, known_images
from foveate.cache.tokens import Images, Tokens
from foveate.compression.layer_memory import OneNumber
from foveate.compression.pipeline import Kept
from foveate.compression.reading import PromptReading
from foveate.compression.tensors import left_padding
from foveate.errors import UnsupportedCache
from foveate.hf.attention.computed import Computed
from foveate.hf.attention.masks import MaskFacts, PassView, examine, over_columns, slots_of
from foveate.hf.layer.stats import Stats
from foveate.policies.policy import Policy

Expansion = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class RereadPass(NamedTuple):
    """A probe pass: a pass after a prompt, whose pairs are discarded.

    ``order`` are the positions of its tokens, counted from 0 on, and -1 for padding; None if no
    score reads the pass. A pass that needs gradients collects, in ``outputs`` by layer, the layer
    as the score will see it and the heads' outputs; the score reads them later.
    """

    order: Int[Tensor, "b t"] | None
    outputs: dict[int, tuple[Layer, Tensor]] | None = None


class TurnState(NamedTuple):
    """State of a cache in its conversation. Immutable, like :class:`Tokens`.

    ``end`` is the column where the current prompt ends, None between prompts; ``awaiting``: the
    next pass begins a prompt. ``padding_told``: the padding is known from a mask [b, n], not from a
    layer's own mask. ``coming`` are the images of the next pass, if a caller passed them.
    ``passes`` are inputs that will be read again. ``stats`` are of the latest prompt.
    """

    stats: Stats
    end: int | None = None
    awaiting: bool = True
    padding_told: bool = False
    coming: Images | None = None
    passes: tuple[Any, ...] = ()


class Ongoing:
    """A pass that a cache takes part in. ``reads`` is True once its layers are being filled,
    ``done`` once all of them are. Before ``reads``, the earlier state can be restored.
    """

    def __init__(self, state: CacheState):
        self._state = state
        self._before = state.tokens, state.turn, state.policy
        self.reads = self.done = False

    def put_back(self) -> None:
        """Restore the state before the pass, if no layer has read it."""
        if not self.reads and not self.done:
            tokens, turn, policy = self._before
            self._state.go_back(tokens, turn, policy)

    def finish(self) -> None:
        """Mark the pass as read by all layers."""
        self.done = True


class Link:
    """Connection of caches to the ``compress()`` context that filled them; copies of a cache share
    it.

    ``projections`` are the output projections by layer of the model, if the policy needs them, and
    ``residual_norms`` the norms of the residual stream that each layer reads in the current pass,
    ``hidden_states`` the inputs of each layer's attention module, until its policy has read them.
    ``expansions`` are functions from latents and rotary keys to keys and values per head, by layer
    of the model, if its cache stores latents (MLA), and ``indexers`` the modules that choose what
    each query attends to, by layer of the model (sparse attention).
    ``strict`` refuses budgets below what is always kept. With ``keeps_scores``, layers remember the
    scores of the pairs that they keep; with ``records_positions``, new caches record the position
    of every token.
    """

    def __init__(self, strict: bool = False) -> None:
        self.open = True
        self.strict = strict
        self.keeps_scores = False
        self.records_positions = False
        self.projections: dict[int, nn.Module] = {}
        self.residual_norms: dict[int, Tensor] = {}
        self.expansions: dict[int, Expansion] = {}
        self.indexers: dict[int, Any] = {}
        self.hidden_states: dict[int, Tensor] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a closed link: an unpickled cache belongs to no context, and has nothing of the
        model. The next context under its policy adopts it.
        """
        return (_closed_link, ())

    def refuse(self) -> NoReturn:
        """Raise UnsupportedCache for a cache whose context was left."""
        raise UnsupportedCache(
            "this compressed cache belongs to a compress() block that was left, and the model "
            "alone cannot read it. Use it inside a compress(model, policy) block."
        )


def _closed_link() -> Link:
    """Return the link of a context that was left."""
    link = Link()
    link.open = False
    return link


class CacheState:
    """State shared by all layers of one cache: ``tokens``, ``turn``, the ``reading`` of the prompt,
    and the facts of the current pass.
    """

    def __init__(
        self,
        policy: Policy,
        link: Link,
        depth: int,
        shares_kv: bool = False,
        most_heads: int | None = None,
        leaders: Mapping[int, int] | None = None,
    ):
        self.leaders = leaders or {}  # layers that keep the set of an earlier one, by ordinal
        self.undivided = policy  # before its budget is divided for a prompt
        early = not shares_kv and not self.leaders  # whether pairs may be shed early
        self.most_heads = most_heads if early else None
        self.shares_kv = shares_kv  # some layers read the pairs of others
        self.link = link
        self.depth = depth
        self.layers: list[Any] = []  # this cache's FoveateLayers, by ordinal
        self.clear()

    def clear(self) -> None:
        """Reset to the state of an empty cache."""
        none = torch.empty(1, 0, dtype=torch.long, device="cpu")
        self.tokens = Tokens(position=none if self.link.records_positions else None)
        self._even = OneNumber()  # the padding, if equal in all rows
        self._images: tuple[Tensor | None, Images | None] | None = None  # vision, and its images
        self._columns: Int[Tensor, "b h n"] | None = None
        self.reading = PromptReading(
            self.undivided,
            self.depth,
            strict=self.link.strict,
            most_heads=self.most_heads,
            leaders=self.leaders,
        )
        self._follow(self.undivided)
        self.turn = TurnState(Stats(self.policy.spec))
        self.reread: RereadPass | None = None  # the current pass, if it is a probe pass
        self.collected: Any = None  # an endless.Made that collects passes' tensors
        self.noted: dict[int, Kept] | None = None  # kept pairs by layer, if requested
        self.ongoing: Ongoing | None = None
        self.start_pass()

    def start_pass(self) -> None:
        """Forget the facts of the latest pass."""
        self.view: PassView | None = None
        self.computed: Computed | None = None  # if some tokens are not computed
        self.before: Layer | None = None  # the latest layer, if the next one needs it
        self.needed_by_next: frozenset[int] = frozenset()  # layers of the model to set as before

    def _follow(self, policy: Policy) -> None:
        self.policy = self.reading.policy = policy
        # Compute the cached properties now: until Python 3.12 they hold a lock, which a traced step
        # could not take.
        _ = policy.prunes, policy.compresses_again, policy.rewrites

    def update_tokens(self, **changes: Any) -> None:
        """Replace the table of tokens by a copy with these fields changed."""
        self.tokens = self.tokens._replace(**changes)

    def update_turn(self, **changes: Any) -> None:
        """Replace the turn by a copy with these fields changed."""
        self.turn = self.turn._replace(**changes)

    def note(self, extras: Mapping[str, Any]) -> None:
        """Store facts with the cache that do not concern single tokens."""
        self.tokens = self.tokens.note(extras)

    def take_note(self, name: str) -> Any:
        """Remove and return such a fact; None if there is none."""
        extras = dict(self.tokens.extras)
        value = extras.pop(name, None)
        self.update_tokens(extras=extras)
        return value

    def go_back(self, tokens: Tokens, turn: TurnState, policy: Policy) -> None:
        """Restore the state before a pass."""
        self.tokens, self.turn = tokens, turn
        self._follow(policy)
        self.start_pass()

    def divide(self, policy: Policy, forms: tuple[Form, ...] | None) -> None:
        """Replace the policy by one whose budget shares are written out, for pairs of these forms.
        Pairs that are stored already stay as they are.
        """
        self._follow(policy)
        self.reading.forms = forms

    def arm(self, end: int) -> None:
        """Begin a prompt that will be compressed and ends at column ``end``."""
        self.update_turn(end=end, awaiting=False, stats=Stats(self.policy.spec))

    def begin(self) -> Ongoing:
        """Begin a pass.

        Raises:
            UnsupportedCache: an earlier pass was interrupted while layers read it, so they differ.
        """
        self.recover()
        self.start_pass()
        self.ongoing = Ongoing(self)
        return self.ongoing

    def recover(self) -> None:
        """Restore the state before a pass that was interrupted before it reached the layers.

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
        """Copy the tokens of a prompt that was read into another cache."""
        self.tokens = other.tokens
        self.update_turn(awaiting=False, passes=other.turn.passes)

    @property
    def pad(self) -> int | None:
        """Padding in front of every row, if equal in all rows. Cached, because it needs a device
        sync.
        """
        return self._even.of(self.tokens.pad)

    def note_padding(self, mask: Any, b: int, n: int) -> None:
        """Note the padding of a prompt from the model's mask [b, n], or from no mask. Layers build
        masks from it that also say other things: those of a sparse attention differ from layer to
        layer.
        """
        if mask is None or (isinstance(mask, Tensor) and mask.shape == (b, n)):
            self.update_tokens(pad=left_padding(mask, b, n, complete=False))
            self.update_turn(padding_told=True)

    def look(self, own_mask: Any, rows: int, new: int, seen: int, device: torch.device) -> PassView:
        """Return the view of the pass under the model's own mask: one object for all layers with
        the same mask. A traced step stores none, or it would be traced again for every length.
        """
        view = self.view
        shape = rows, new, seen
        if view is None or view.own is not own_mask or view.shape != shape:
            is_known = own_mask is None or self.turn.end is None or self.turn.padding_told
            pads = self.tokens.pad if is_known else None
            view = PassView(own_mask, shape, over_columns(own_mask, *shape), pads, device)
            if not torch.compiler.is_compiling():
                self.view = view
        return view

    def padding(self, mask: Any, rows: int, seen: int, new: int, device: torch.device) -> Tensor:
        """Return the padding in front of each row [b], from the mask of the pass that will be read:
        ``new`` tokens after ``seen`` ones.
        """
        return self.facts(self.look(mask, rows, new, seen + new, device)).pads

    def facts(self, view: PassView) -> MaskFacts:
        """Return the properties of the view's mask, computed once for all layers with the same
        mask.
        """
        if view.facts is None:
            view.facts = examine(view.mask, view.pads, view.shape, view.device)
            if self.tokens.pad is not view.facts.pads:
                self.update_tokens(pad=view.facts.pads)
        return view.facts

    def images(self) -> Images | None:
        """Return image and slot of every token seen; None if the visual tokens are unknown."""
        tokens, cached = self.tokens, self._images
        if not tokens.vision_known or tokens.image is not None:
            return tokens.images
        if cached is None or cached[0] is not tokens.vision:
            cached = self._images = tokens.vision, tokens.images
        return cached[1]

    def visual_columns(self) -> Bool[Tensor, "b seen"]:
        """Return a mask of the visual tokens seen; raises MissingModality if these are unknown."""
        images = self.images()
        return known_images(None if images is None else images[0]) >= 0

    def visual_counts(self) -> Int[Tensor, "b"] | None:
        """Count each row's visual tokens so far, dropped ones included; None where the policy
        prunes none, or they are unknown.
        """
        vision = self.tokens.seen_visual
        return None if vision is None or self.policy.prune is None else vision.sum(-1)

    def columns(self, like: Shaped[Tensor, "b h n *d"]) -> Int[Tensor, "b h n"]:
        """Return the columns [b, h, n] of a layer that stores every column, int32 as in pairs;
        layers of one shape and device share the tensor.
        """
        cached, shape = self._columns, like.shape[:3]  # layers may differ in heads and device
        if cached is None or cached.shape != shape or cached.device != like.device:
            columns = torch.arange(shape[2], dtype=torch.int32, device=like.device)
            cached = self._columns = columns.expand(shape)
        return cached

    def slots(self, columns: Int[Tensor, "b h n"], view: PassView, queries: int) -> Slots:
        """Return the slots at ``columns``, for the latest ``queries``. Layers that store every
        column share one object, so that what depends on it is computed once a pass.
        """
        if columns is self._columns and view.all_slots is not None and view.all_slots[0] is columns:
            return view.all_slots[1]
        facts, images, end = self.facts(view), self.images(), view.shape[2]
        if columns is not self._columns:
            return slots_of(columns, True, (end - queries, end), facts, images, view.mask)
        slots = slots_of(columns, False, (end - queries, end), facts, images, view.mask)
        view.all_slots = columns, slots
        return slots

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Select rows, when the batch is reordered, repeated or cut."""
        self.tokens = self.tokens.rows(rows)
        self.update_turn(passes=())  # recorded for the old rows
        self.view = None
