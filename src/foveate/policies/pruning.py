"""Protocol of the stage ``prune``, which chooses the visual tokens of a prompt to compute.

A token dropped before a layer is not read by that layer or any later one, and has no keys and
values there. The others keep their positions.
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
    """Attention that visual tokens get in the image tower, in the layer that feeds the decoder.

    ``paid`` is the mean over heads of the class token's attention or, in a tower without one, the
    mean over all queries of the token's image. ``keys`` are means over heads. A token made of
    several patches has their means; one made of none, such as the end of a line of tiles, has -inf
    and zeros. Text has zeros.
    """

    paid: Float[Tensor, "b t"]
    keys: Float[Tensor, "b t d"]


@dataclass(frozen=True, kw_only=True)
class EnteringTokens:
    """Tokens of one pass of a prompt before the layer ``layer`` of the model's ``depth``.

    Tokens dropped before an earlier layer are not among them. ``pos`` is each token's index within
    its own row, -1 at an empty position. ``image`` and ``spot`` are as in slots: the index of a
    token's image, and its index among the image's visual tokens before any was dropped; -1 for
    text. ``visual_tokens`` counts the visual tokens of the pass before any was dropped. ``before``
    is the layer before this one, after it has read the pass: its queries, and its last slots, are
    those of these tokens; None before the first layer. ``notes`` are the stage's own notes about
    these tokens before earlier layers. ``tower`` is set before the first layer, for stages with
    ``reads_tower = True``, and ``repeated`` for a :class:`PixelPrune`: visual tokens whose pixels
    it called repeated.
    """

    layer: int
    depth: int
    hidden: Float[Tensor, "b t c"]
    pos: Int[Tensor, "b t"]
    image: Int[Tensor, "b t"]
    spot: Int[Tensor, "b t"]
    visual_tokens: Int[Tensor, "b"]
    before: Layer | None = None
    notes: Mapping[str, Shaped[Tensor, "b t"]] = field(default_factory=dict)
    tower: TowerAttention | None = None
    repeated: Bool[Tensor, "b t"] | None = None

    @cached_property
    def vision(self) -> Bool[Tensor, "b t"]:
        """True at visual tokens."""
        return (self.image >= 0) & (self.pos >= 0)

    def attended(self) -> Layer:
        """Return the layer before this one.

        Raises:
            UnsupportedModel: there is none, or its cache is not compressed.
        """
        if self.before is None:
            raise UnsupportedModel(
                f"the layer before layer {self.layer} has no full attention to choose tokens by. "
                "Choose another layer."
            )
        return self.before

    def seen(self) -> TowerAttention:
        """Return the image tower's attention to the tokens.

        Raises:
            UnsupportedModel: it was not recorded.
        """
        if self.tower is None:
            raise UnsupportedModel(
                "the image tower's attention was not recorded. A stage that chooses tokens by it "
                "needs reads_tower = True, and has to choose before layer 0."
            )
        return self.tower

    def pixel_repeats(self) -> Bool[Tensor, "b t"]:
        """Return the visual tokens whose pixels repeat others.

        Raises:
            UnsupportedModel: pixels were not compared.
        """
        if self.repeated is None:
            raise UnsupportedModel(
                "the pixels of these tokens were not compared. A stage that drops repeated pixels "
                "needs a method repeated(patches), and has to choose before layer 0."
            )
        return self.repeated


class Pruned(NamedTuple):
    """Tokens that go on, as a mask.

    ``hidden`` are the hidden states of all tokens if some take over others (those of dropped tokens
    are not read). Text always goes on. ``notes``, one number per token, come back before later
    layers, for the tokens that went on.
    """

    goes_on: Bool[Tensor, "b t"]
    hidden: Float[Tensor, "b t c"] | None = None
    notes: Mapping[str, Shaped[Tensor, "b t"]] = {}


@runtime_checkable
class Prune(Protocol):
    """Choice of the visual tokens that are computed.

    ``layers`` are those of a model of ``depth`` layers before which it is called, ascending, 0 for
    the first. It is called once for each pass of a prompt, with all rows.
    """

    def layers(self, depth: int) -> tuple[int, ...]: ...

    def __call__(self, tokens: EnteringTokens) -> Pruned: ...


@runtime_checkable
class PixelPrune(Prune, Protocol):
    """A prune stage that drops tokens by the pixels of their patches.

    ``repeated`` gets the pixels of one image (or frame, or tile) in rows and columns of visual
    tokens, as the vision encoder reads them. It marks those that may be left out: of encoders that
    can leave patches out, layers from ``encoder_layer`` on (0 if there is no such attribute) do not
    read them.
    """

    def repeated(self, patches: Float[Tensor, "r c d"]) -> Bool[Tensor, "r c"]: ...


@runtime_checkable
class ForeseeablePrune(Prune, Protocol):
    """A prune stage whose counts follow from lengths alone.

    ``counts`` returns, for each of ``layers(depth)``, the visual tokens of a row that go on into
    it, at most. ``images`` are the visual tokens of each image (0: text alone).
    """

    def counts(self, depth: int, images: Sequence[int]) -> tuple[int, ...]: ...


def share_or_auto(keep: AmountLike) -> AmountLike:
    """Return the share of visual tokens that goes on; "auto" if the policy's budget decides it.

    Raises:
        InvalidParameter: it is neither.
    """
    return AUTO if keep == AUTO else share(keep)


def share(keep: AmountLike) -> Amount:
    """Return the share of visual tokens that goes on.

    Raises:
        InvalidParameter: ``keep`` is no share.
    """
    if keep == AUTO:
        raise InvalidParameter(
            "keep=auto needs a budget to divide, and none is divided for this stage or here. Give "
            "a share, such as keep=50%."
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


def going_on(keep: Amount, visual_tokens: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Return the number of visual tokens that go on: rounded down, at least one if there is one."""
    return keep.tokens(visual_tokens, 0).minimum(visual_tokens)


def number_going_on(keep: Amount, visual_tokens: int) -> int:
    """Return the number of visual tokens of one row that go on."""
    return int(going_on(keep, torch.tensor([visual_tokens], dtype=torch.long, device="cpu"))[0])
