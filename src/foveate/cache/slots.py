"""Positions, images and masks of the slots and queries of a pass, and values derived from them.

Layers with the same slots (usually all layers of a prompt) share one ``Slots``, so that derived
values are computed once for all of them. A ``Slots`` has no keys or values, so nothing shared can
depend on one layer's tensors.
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
    """Cache the results of ``rule``, a function of slots, on the slots.

    ``rule`` may depend on the slots and on its other arguments (numbers, names and stages) alone.
    Callers must not write into its results.
    """

    @functools.wraps(rule)
    def once(slots: Slots, /, *arguments: P.args, **options: P.kwargs) -> Found:
        # a window of 1 token and one of 1.0 of the budget are equal numbers and different windows
        types = list(map(type, arguments))
        for known, known_arguments, their_types, value in slots._derived:
            if known is rule and known_arguments == arguments and their_types == types:
                return value  # type: ignore[no-any-return]
        new = rule(slots, *arguments, **options)
        slots._derived.append((rule, arguments, types, new))
        return new

    return once


@dataclass(frozen=True, eq=False, kw_only=True)
class Slots:
    """Positions, images and masks of one pass, and the budget of each row.

    ``pos`` is the index of a slot's token within its own row, counted without padding; a slot with
    a negative ``pos`` is padding (or empty) and is never scored and never kept. Slots ascend in
    ``pos``, empty ones first. ``q_pos`` are the positions of the queries, which are the last ``m``
    of the prompt. A ``mask`` of None means causal: a query sees every slot with
    ``0 <= pos <= q_pos``. ``tokens`` is each row's budget, per KV head; scores whose number of
    queries depends on the budget need it. ``read`` counts the tokens of each row so far, if some
    were never computed: then the last token may have no query, and queries with a negative
    ``q_pos`` have no token.
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
        """Return the fields without the derived values, whose keys cannot be pickled."""
        return {**vars(self), "_derived": []}

    @cached_property
    def valid(self) -> Bool[Tensor, "b h n"]:
        """True where a slot contains a real token."""
        return self.where(lambda pos: pos >= 0)

    @cached_property
    def all_valid(self) -> bool:
        """True if all slots contain a real token."""
        return bool(once_for_heads(self.valid).all())

    @cached_property
    def available(self) -> Int[Tensor, "b h"]:
        """Number of real tokens of each head."""
        return once_for_heads(self.valid).sum(-1).expand(self.pos.shape[:2])

    @cached_property
    def lengths(self) -> Int[Tensor, "b"]:
        """Tokens that each row has seen, padding excluded; also those that were not computed."""
        return self.q_pos[:, -1] + 1 if self.read is None else self.read

    @cached_property
    def vision(self) -> Bool[Tensor, "b h n"]:
        """True at visual tokens.

        Raises:
            MissingModality: it is unknown which tokens are visual.
        """
        return self.known_image >= 0

    @property
    def known_image(self) -> Int[Tensor, "b h n"]:
        """Image of each slot, -1: text; raises MissingModality if it is unknown."""
        return known_images(self.image)

    @property
    def known_spot(self) -> Int[Tensor, "b h n"]:
        """Each slot's index within its image, -1: text; raises MissingModality if unknown."""
        return known_images(self.spot)

    @cached_property
    def q_vision(self) -> Bool[Tensor, "b m"]:
        """True at queries of visual tokens.

        Raises:
            MissingModality: it is unknown which tokens are visual.
        """
        return known_images(self.q_image) >= 0

    @cached_property
    def all_fits(self) -> bool:
        """True if every row has a budget that all its tokens fit into."""
        return self.tokens is not None and bool((self.available <= self.tokens[:, None]).all())

    @cached_property
    def longest_budget(self) -> int:
        """The largest budget of a row, in tokens; 0 without budgets."""
        return 0 if self.tokens is None else int(self.tokens.max())

    @cached_property
    def last_query(self) -> Slots:
        """These slots with the last query alone."""
        return self.from_query(self.q_pos.shape[1] - 1)

    @cached_property
    def last_query_copied(self) -> Slots:
        """A copy of ``last_query`` that does not keep the other queries' memory alive."""
        last = self.last_query
        q_image, mask = (None if t is None else t.clone() for t in (last.q_image, last.mask))
        return replace(last, q_pos=last.q_pos.clone(), q_image=q_image, mask=mask)

    def where(
        self, predicate: Callable[[Int[Tensor, "b #h n"]], Bool[Tensor, "b #h n"]]
    ) -> Bool[Tensor, "b h n"]:
        """Evaluate a predicate on the positions of all slots.

        It runs once if all heads have the same positions.
        """
        return predicate(once_for_heads(self.pos)).expand_as(self.pos)

    def visible(self, w: int) -> Bool[Tensor, "b #h w n"]:
        """Return the slots that each of the last ``w`` queries attends to, as a mask."""
        return self.visible_to(slice(-w, None))

    def visible_to(self, queries: slice | Int[Tensor, "r"]) -> Bool[Tensor, "b #h r n"]:
        """Return the slots that the selected queries attend to, as a mask.

        A mask of all queries and all slots may not fit into memory.
        """
        if self.mask is not None:
            return self.mask[:, :, queries]
        pos = once_for_heads(self.pos)[:, :, None, :]
        return (pos >= 0) & (pos <= self.q_pos[:, queries][:, None, :, None])

    @derived
    def last_visible(self, w: int) -> Tensor:
        """Return ``visible(w)`` for the last slots alone, [b, #h, w, s].

        The ``w`` queries attend to all slots before these.
        """
        return from_first_hidden(self.visible(w))

    def with_budget(self, tokens: Int[Tensor, "b"]) -> Slots:
        """Return these slots with another budget of each row."""
        return replace(self, tokens=tokens)

    @derived
    def for_heads(self, heads: int) -> Slots:
        """Return the slots of the first head as those of ``heads`` heads."""
        image, spot = (
            None if t is None else t[:, :1].expand(-1, heads, -1) for t in (self.image, self.spot)
        )
        return replace(self, pos=self.pos[:, :1].expand(-1, heads, -1), image=image, spot=spot)

    def from_query(self, first: int) -> Slots:
        """Return these slots with the queries from ``first`` on."""
        return replace(
            self,
            q_pos=self.q_pos[:, first:],
            q_image=None if self.q_image is None else self.q_image[:, first:],
            mask=None if self.mask is None else self.mask[:, :, first:],
        )


def once_for_heads(t: Shaped[Tensor, "b h n"]) -> Shaped[Tensor, "b #h n"]:
    """Return the first head's part of a tensor that was expanded over heads, else the tensor.

    Equal heads that were not expanded are not detected.
    """
    # expand() gives a dimension the stride 0
    return t[:, :1] if t.stride(1) == 0 else t


def known_images(image: Int[Tensor, "..."] | None) -> Int[Tensor, "..."]:
    """Return ``image``; raises MissingModality if it is None."""
    if image is None:
        raise MissingModality(
            "this policy treats visual and text tokens differently, and nothing tells which "
            "tokens are visual. Pass vision= (bool, [batch, tokens]) to compress() or "
            "compress_tensors()."
        )
    return image
