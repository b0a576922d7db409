"""Which visual tokens of a prompt are computed at all: what the stage ``prune`` of a policy sees,
and what it says. What is dropped before a layer is neither read by that layer nor by any behind it,
and has no keys and values there; what stays keeps the position that it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.errors import InvalidBudget, InvalidParameter, UnsupportedModel
from foveate.policies.amount import AUTO, Amount, AmountLike


class TowerAttention(NamedTuple):
    """How the image tower looked at each visual token, in the layer whose output it gives to the
    decoder: what the token was ``paid`` there, the mean over heads of what the class token pays it
    or, in a tower without one, the mean over all queries of its image; and its ``keys``, the mean
    over heads. A token that is made of several patches has their means; one that is made of none,
    as the end of a line of tiles, is paid -inf, and its key is zeros. Zeros at text.
    """

    paid: Float[Tensor, "b t"]
    keys: Float[Tensor, "b t d"]


@dataclass(frozen=True, kw_only=True)
class EnteringTokens:
    """The tokens of one pass of a prompt that are about to enter the layer ``layer`` of the model's
    ``depth``; those that were dropped before an earlier layer are not among them.

    ``pos`` is each token's index within its own row, -1 where a place stands for no token.
    ``image`` and ``spot`` are as those of slots: the image that a token belongs to, and which
    visual token of it it is, as the prompt was given; -1 for text. ``given`` counts the visual
    tokens of the pass before any was dropped. ``before`` is the layer before this one, as it has
    read the pass: the queries are those of these tokens, and its last slots are theirs; None before
    the first layer. ``notes`` is what the stage noted of these tokens before earlier layers.
    ``tower`` is there before the first layer, for stages that say ``reads_tower = True``.
    """

    layer: int
    depth: int
    hidden: Float[Tensor, "b t c"]
    pos: Int[Tensor, "b t"]
    image: Int[Tensor, "b t"]
    spot: Int[Tensor, "b t"]
    given: Int[Tensor, "b"]
    before: Layer | None = None
    notes: Mapping[str, Shaped[Tensor, "b t"]] = field(default_factory=dict)
    tower: TowerAttention | None = None

    @cached_property
    def vision(self) -> Bool[Tensor, "b t"]:
        """True at visual tokens."""
        return (self.image >= 0) & (self.pos >= 0)

    def attended(self) -> Layer:
        """The layer before this one.

        Raises:
            UnsupportedModel: there is none, or it is one whose cache is not compressed.
        """
        if self.before is None:
            raise UnsupportedModel(
                f"tokens are to be chosen before layer {self.layer} by the attention of the layer "
                "before it, which has no full attention here. Choose another layer."
            )
        return self.before

    def seen(self) -> TowerAttention:
        """How the image tower looked at the tokens.

        Raises:
            UnsupportedModel: nothing noted it.
        """
        if self.tower is None:
            raise UnsupportedModel(
                "tokens are to be chosen by the image tower's attention, and nobody noted it: the "
                "stage has to say reads_tower = True, and to choose before layer 0."
            )
        return self.tower


class Pruned(NamedTuple):
    """Which of the tokens go on, and, if some of them take over others, the hidden states with
    which all do (those of tokens that are dropped are not read). Text goes on whatever it says.
    ``notes``, one number for each token, come back with those that go on, before later layers.
    """

    goes_on: Bool[Tensor, "b t"]
    hidden: Float[Tensor, "b t c"] | None = None
    notes: Mapping[str, Shaped[Tensor, "b t"]] = {}


@runtime_checkable
class Prune(Protocol):
    """Chooses the visual tokens that are computed.

    ``layers`` are those of a model of ``depth`` layers before which it is asked, ascending, 0 for
    the first. It is asked once for each pass of a prompt, about all rows.
    """

    def layers(self, depth: int) -> tuple[int, ...]: ...

    def __call__(self, tokens: EnteringTokens) -> Pruned: ...


@runtime_checkable
class ForeseeablePrune(Prune, Protocol):
    """One whose numbers follow from lengths alone: ``counts`` has, for each of ``layers(depth)``,
    how many visual tokens of a row go on into it, where its images have so many (0: text alone).
    """

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]: ...


def share_or_auto(keep: AmountLike) -> AmountLike:
    """The share of visual tokens that goes on; "auto" where it follows from the policy's budget.

    Raises:
        InvalidParameter: it is neither.
    """
    return AUTO if keep == AUTO else share(keep)


def share(keep: AmountLike) -> Amount:
    """The share of visual tokens that goes on.

    Raises:
        InvalidParameter: it is none.
    """
    if keep == AUTO:
        raise InvalidParameter(
            "keep=auto is no share before a budget has been divided, and this stage or this "
            "place divides none. Give a share, such as keep=50%."
        )
    try:
        amount = Amount.of(keep)
    except InvalidBudget:
        amount = None
    if amount is None or amount.kind != "fraction":
        raise InvalidParameter(
            f"keep={keep!r} is no share of the visual tokens: give one above 0 and up to 1, such "
            "as 50% or 0.5."
        )
    return amount


def going_on(keep: Amount, given: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """How many of so many visual tokens that is: rounded down, at least one, if there is one."""
    return keep.tokens(given, 0).minimum(given)


def number_going_on(keep: Amount, given: int) -> int:
    """The same of one row."""
    return int(going_on(keep, torch.tensor([given], dtype=torch.long, device="cpu"))[0])
