"""Where the slots and the queries of a pass come from, and what follows from that alone.

Layers that hold the same slots (as a rule all layers of a prompt) share one ``Slots``, so that what
follows from positions, images, masks and budgets is worked out once for all of them. Nothing here
knows keys or values, so nothing that is shared can depend on a layer's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Concatenate, ParamSpec, TypeVar

from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from foveate.errors import MissingModality
from foveate.ops.window_attention import from_first_hidden

P = ParamSpec("P")
Found = TypeVar("Found")


def derived(
    rule: Callable[Concatenate[Slots, P], Found],
) -> Callable[Concatenate[Slots, P], Found]:
    """Decorates a function of slots, so that what it says of the same slots is worked out once. It
    knows nothing else, and its other arguments are numbers, names and stages. Nobody may write into
    what comes out.
    """

    @functools.wraps(rule)
    def once(slots: Slots, /, *of: P.args, **none: P.kwargs) -> Found:
        # a window of 1 token and one of 1.0 of the budget are equal numbers and different windows
        types = list(map(type, of))
        for known, arguments, their_types, value in slots._derived:
            if known is rule and arguments == of and their_types == types:
                return value  # type: ignore[no-any-return]
        new = rule(slots, *of, **none)
        slots._derived.append((rule, of, types, new))
        return new

    return once


@dataclass(frozen=True, eq=False, kw_only=True)
class Slots:
    """Positions, images and masks of one pass, and the budget of each row.

    ``pos`` is the index of a slot's token within its own row, counted without padding; a slot with
    a negative ``pos`` is padding (or empty) and is never scored and never kept. Slots ascend in
    ``pos``; empty ones stand in front. ``q_pos`` is the same for queries, which are the last ``m``
    of the prompt. A ``mask`` of None means causal: a query sees every slot with
    ``0 <= pos <= q_pos``. ``tokens`` is each row's budget, per KV head; scores that read as many
    queries as the budget allows need it. ``read`` counts the tokens of each row so far, where some
    were never computed: the last of them may be none of the queries, some of which then stand for
    no token (``q_pos`` is negative).
    """

    pos: Int[Tensor, "b h n"]
    q_pos: Int[Tensor, "b m"]
    image: Int[Tensor, "b h n"] | None = None  # index of the image a slot belongs to; -1: text
    spot: Int[Tensor, "b h n"] | None = None  # which visual token of its image it is; -1: text
    q_image: Int[Tensor, "b m"] | None = None  # the image of each query
    mask: Bool[Tensor, "b #h m n"] | None = None
    tokens: Int[Tensor, "b"] | None = None
    read: Int[Tensor, "b"] | None = None
    _derived: list[tuple[Any, tuple[Any, ...], list[type], Any]] = field(
        default_factory=list, init=False, repr=False
    )

    def __getstate__(self) -> dict[str, Any]:
        """Without what was worked out: it is known by functions that pickle does not find."""
        return {**vars(self), "_derived": []}

    @cached_property
    def valid(self) -> Bool[Tensor, "b h n"]:
        """True where a slot holds a real token."""
        return self.where(lambda pos: pos >= 0)

    @cached_property
    def whole(self) -> bool:
        """Whether all slots hold a real token."""
        return bool(once_for_heads(self.valid).all())

    @cached_property
    def available(self) -> Int[Tensor, "b h"]:
        """How many real tokens each head holds."""
        return once_for_heads(self.valid).sum(-1).expand(self.pos.shape[:2])

    @cached_property
    def lengths(self) -> Int[Tensor, "b"]:
        """Tokens that each row has seen, padding excluded; also those that were not computed."""
        return self.q_pos[:, -1] + 1 if self.read is None else self.read

    @cached_property
    def vision(self) -> Bool[Tensor, "b h n"]:
        """True at visual tokens.

        Raises:
            MissingModality: nothing told which tokens are visual.
        """
        return self.known_image >= 0

    @property
    def known_image(self) -> Int[Tensor, "b h n"]:
        """The image of each slot, -1 for text; raises MissingModality if nothing told."""
        return known_images(self.image)

    @property
    def known_spot(self) -> Int[Tensor, "b h n"]:
        """Which visual token of its image each is; raises MissingModality if nothing told."""
        return known_images(self.spot)

    @cached_property
    def q_vision(self) -> Bool[Tensor, "b m"]:
        """True at queries of visual tokens.

        Raises:
            MissingModality: nothing told which tokens are visual.
        """
        return known_images(self.q_image) >= 0

    @cached_property
    def all_fits(self) -> bool:
        """Whether every row fits its budget whole."""
        return self.tokens is not None and bool((self.available <= self.tokens[:, None]).all())

    @cached_property
    def longest_budget(self) -> int:
        """Of the rows' budgets, in tokens; none is zero."""
        return 0 if self.tokens is None else int(self.tokens.max())

    @cached_property
    def last_query(self) -> Slots:
        """The same slots, and the last query alone."""
        return self.from_query(self.q_pos.shape[1] - 1)

    @cached_property
    def last_query_copied(self) -> Slots:
        """The same in memory of its own, where the other queries need not be held for it."""
        some = self.last_query
        q_image, mask = (None if t is None else t.clone() for t in (some.q_image, some.mask))
        return replace(some, q_pos=some.q_pos.clone(), q_image=q_image, mask=mask)

    def where(
        self, holds: Callable[[Int[Tensor, "b #h n"]], Bool[Tensor, "b #h n"]]
    ) -> Bool[Tensor, "b h n"]:
        """True where ``holds`` says so of the positions; asked once if all heads have the same."""
        return holds(once_for_heads(self.pos)).expand_as(self.pos)

    def visible(self, w: int) -> Bool[Tensor, "b #h w n"]:
        """Which slots each of the last ``w`` queries attends to."""
        return self.visible_to(slice(-w, None))

    def visible_to(self, some: slice | Int[Tensor, "r"]) -> Bool[Tensor, "b #h r n"]:
        """The same of some of the queries: all of them by all slots may be more than there is
        memory for.
        """
        if self.mask is not None:
            return self.mask[:, :, some]
        pos = once_for_heads(self.pos)[:, :, None, :]
        return (pos >= 0) & (pos <= self.q_pos[:, some][:, None, :, None])

    @derived
    def last_visible(self, w: int) -> Tensor:
        """The same of the last slots alone, [b, #h, w, s]: these queries attend to all slots before
        them.
        """
        return from_first_hidden(self.visible(w))

    def with_budget(self, tokens: Int[Tensor, "b"]) -> Slots:
        """The same slots where each row has this budget."""
        return replace(self, tokens=tokens)

    def from_query(self, first: int) -> Slots:
        """The same slots, and the queries from ``first`` on."""
        return replace(
            self,
            q_pos=self.q_pos[:, first:],
            q_image=None if self.q_image is None else self.q_image[:, first:],
            mask=None if self.mask is None else self.mask[:, :, first:],
        )


def once_for_heads(t: Shaped[Tensor, "b h n"]) -> Shaped[Tensor, "b #h n"]:
    """One head's part where one was expanded over all of them; otherwise all of it."""
    # expand() gives the heads no memory of their own; heads that are equal are not looked for
    return t[:, :1] if t.stride(1) == 0 else t


def known_images(image: Int[Tensor, "..."] | None) -> Int[Tensor, "..."]:
    """The images of tokens; raises MissingModality if nothing told which are visual."""
    if image is None:
        raise MissingModality(
            "this policy treats visual and text tokens differently, and nothing tells which "
            "tokens are visual. Pass vision= (bool, [batch, tokens]) to compress() or "
            "compress_tensors()."
        )
    return image
