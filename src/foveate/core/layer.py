"""All that a stage may see of one attention layer.

Axis letters, used in every signature of the package:

    b  rows of the batch          h  KV heads            g  query heads per KV head (hq = h * g)
    n  slots: stored KV pairs     m  queries at hand     w  queries of the observation window
    d  head size of q and k       e  head size of v
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from foveate.core.errors import MissingModality
from foveate.ops.window_attention import from_first_hidden

Found = TypeVar("Found")
WorkedOut = dict[str, tuple[tuple[object, ...], Any]]
"""What was found, by name, and what it follows from."""


@runtime_checkable
class Window(Protocol):
    """The prompt's last ``queries``, whose attention a backend makes along with the sums over it,
    once a score asks for these.
    """

    queries: int

    def sums(self, counts: Float[Tensor, "b c g w"], n: float) -> Float[Tensor, "b h c n"]:
        """What the last ``w`` of them pay to every slot, as a softmax-n, each counted as told."""
        ...


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's queries, keys and values, all post-RoPE, and where they come from.

    ``pos`` is the index of a slot's token within its own row, counted without padding; a slot with
    a negative ``pos`` is padding (or empty) and is never scored and never kept. Slots ascend in
    ``pos``; empty ones stand in front. ``q_pos`` is the same for queries, which are the last ``m``
    of the prompt. A ``mask`` of None means causal: a query sees every slot with
    ``0 <= pos <= q_pos``. ``tokens`` is each row's budget, per KV head; scores that read as many
    queries as the budget allows need it.
    """

    q: Float[Tensor, "b hq m d"]
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    pos: Int[Tensor, "b h n"]
    q_pos: Int[Tensor, "b m"]
    image: Int[Tensor, "b h n"] | None = None  # index of the image a slot belongs to; -1: text
    spot: Int[Tensor, "b h n"] | None = None  # which visual token of its image it is; -1: text
    q_image: Int[Tensor, "b m"] | None = None  # the same of the queries
    mask: Bool[Tensor, "b #h m n"] | None = None
    scale: float
    index: int = 0  # place among the compressed layers
    model_index: int | None = None  # the layer's index in the model, where the backend knows it
    depth: int = 1  # number of compressed layers
    tokens: Int[Tensor, "b"] | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)  # running statistics, [b h n] each
    earlier: tuple[Mapping[str, Tensor], ...] = ()  # notes of the layers before this one
    # sums over queries of the softmax, where the attention has added them up on its way
    column_sums: Float[Tensor, "b hq n"] | None = None
    window: Window | None = None  # the last queries, where their attention is still to be made
    worked_out: WorkedOut = field(default_factory=dict, repr=False)  # shared by layers of a pass

    @property
    def number(self) -> int:
        """What messages call the layer: its index in the model, as a model may have layers that
        are not compressed; its place among the layers at hand where there is no model.
        """
        return self.index if self.model_index is None else self.model_index

    @property
    def groups(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def valid(self) -> Bool[Tensor, "b h n"]:
        """True where a slot holds a real token."""
        return self.once("valid", lambda: self.where(lambda pos: pos >= 0), self.pos)

    @property
    def whole(self) -> bool:
        """Whether all slots hold a real token."""
        return self.once("whole", lambda: bool(self.valid.all()), self.valid)

    def where(
        self, holds: Callable[[Int[Tensor, "b #h n"]], Bool[Tensor, "b #h n"]]
    ) -> Bool[Tensor, "b h n"]:
        """True where ``holds`` says so of the positions; asked once if all heads have the same."""
        return holds(once_for_heads(self.pos)).expand_as(self.pos)

    @property
    def available(self) -> Int[Tensor, "b h"]:
        """How many real tokens each head holds."""
        return self.once("available", lambda: (
            once_for_heads(self.valid).sum(-1).expand(self.pos.shape[:2])
        ), self.pos)  # fmt: skip

    @property
    def vision(self) -> Bool[Tensor, "b h n"]:
        """True at visual tokens.

        Raises:
            MissingModality: nothing told which tokens are visual.
        """
        return _known(self.image) >= 0

    @property
    def known_image(self) -> Int[Tensor, "b h n"]:
        """The image of each slot, -1 for text; raises MissingModality if nothing told."""
        return _known(self.image)

    @property
    def known_spot(self) -> Int[Tensor, "b h n"]:
        """Which visual token of its image each is; raises MissingModality if nothing told."""
        return _known(self.spot)

    @property
    def q_vision(self) -> Bool[Tensor, "b m"]:
        """True at queries of visual tokens.

        Raises:
            MissingModality: nothing told which tokens are visual.
        """
        return _known(self.q_image) >= 0

    @property
    def lengths(self) -> Int[Tensor, "b"]:
        """Tokens that each row has seen, padding excluded."""
        return self.once("lengths", lambda: self.q_pos[:, -1] + 1, self.q_pos)

    def once(self, name: str, work: Callable[[], Found], *of: object) -> Found:
        """What ``work`` finds, and follows from ``of`` alone; done once for all layers that have
        the same: the very tensors, and equal numbers. Nobody may write into it.
        """
        known = self.worked_out.get(name)
        if known is None or not _same(known[0], of):
            known = self.worked_out[name] = (of, work())
        found: Found = known[1]
        return found

    def visible(self, w: int) -> Bool[Tensor, "b #h w n"]:
        """Which slots each of the last ``w`` queries attends to."""
        if self.mask is not None:
            return self.mask[:, :, -w:, :]
        pos = once_for_heads(self.pos)[:, :, None, :]
        return (pos >= 0) & (pos <= self.q_pos[:, None, -w:, None])

    def last_visible(self, w: int) -> Bool[Tensor, "b #h w s"]:
        """The same of the last slots alone: these queries attend to all slots before them."""
        if self.mask is not None:
            return from_first_hidden(self.visible(w))
        return self.once("last visible", lambda: from_first_hidden(self.visible(w)),
                         w, self.pos, self.q_pos)  # fmt: skip

    def after_scoring(self, copied: bool) -> Layer:
        """The layer as the stages after its score see it: the last query alone is left.

        A budget over all layers waits for the last one; it wants it ``copied``, or would hold
        everybody's queries, which take more memory than the keys and values.
        """

        def last(t: Tensor) -> Tensor:
            return t.clone() if copied else t

        return replace(
            self,
            q=last(self.q[:, :, -1:]),
            q_pos=last(self.q_pos[:, -1:]),
            q_image=None if self.q_image is None else last(self.q_image[:, -1:]),
            mask=None if self.mask is None else last(self.mask[:, :, -1:]),
            column_sums=None,
            window=None,
        )


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    for a, b in zip(one, other, strict=True):  # asked a hundred times a pass: no generator
        if a is not b and (isinstance(a, Tensor) or a != b):
            return False
    return True


def once_for_heads(t: Shaped[Tensor, "b h n"]) -> Shaped[Tensor, "b #h n"]:
    """One head's part where one was expanded over all of them; otherwise all of it."""
    return t[:, :1] if t.stride(1) == 0 else t


def _known(image: Int[Tensor, "..."] | None) -> Int[Tensor, "..."]:
    if image is None:
        raise MissingModality(
            "this policy treats visual and text tokens differently, and nothing tells which "
            "tokens are visual. Pass vision= (bool, [batch, tokens]) to compress() or "
            "compress_tensors()."
        )
    return image


class Scores(NamedTuple):
    """What a score says of one layer.

    ``values`` rank the slots, high is important. ``parts`` are named components of them, for a
    selection that draws on several lists; a part "importance" tells how much each slot matters
    where ``values`` rank by something else as well. ``notes`` are facts about the layer ([b ...])
    that the selection of this layer, and the stages of later ones (in ``Layer.earlier``), may read.
    """

    values: Float[Tensor, "b h n"]
    parts: Mapping[str, Tensor] = {}
    notes: Mapping[str, Tensor] = {}


@dataclass(frozen=True, eq=False)
class Scored:
    """A layer with its scores: what budgets and selections work on.

    In ``scores.values`` a protected slot is +inf and an empty or padded one is -inf, so ranking
    alone keeps the one and never the other. ``raw`` are the values before that was marked, and
    ``tokens`` is each row's budget per KV head.
    """

    layer: Layer
    scores: Scores
    raw: Float[Tensor, "b h n"]
    tokens: Int[Tensor, "b"]
    always: Int[Tensor, "b h"] | None = None  # ``protected``, if they have been counted

    @property
    def importance(self) -> Float[Tensor, "b h n"]:
        """How much each slot matters, protected or not; zero at padding."""
        values: Tensor = self.scores.parts.get("importance", self.raw)
        return values.float().masked_fill(~self.layer.valid, 0.0)

    @property
    def available(self) -> Int[Tensor, "b h"]:
        """Slots that can be kept."""
        return self.layer.available

    @cached_property
    def protected(self) -> Int[Tensor, "b h"]:
        """Slots that are kept whatever their score."""
        return (self.scores.values == float("inf")).sum(-1) if self.always is None else self.always
