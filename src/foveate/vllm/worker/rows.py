"""A request in a pass of the model, and what is known of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.slots import Slots
from foveate.cache.tokens import image_index, spot_index
from foveate.compression.reading import PromptReading
from foveate.policies.policy import Policy
from foveate.stages.when import OverBudget
from foveate.vllm.plans.orders import Order

VISUAL = ("image", "video")


@dataclass
class RequestPrompt:
    """What is compressed of the prompt of request ``name``. ``vision`` is True at visual tokens."""

    name: str
    order: Order
    policy: Policy
    vision: Bool[Tensor, "n"]
    reading: PromptReading
    kept: dict[int, list[Int[Tensor, "k"]]] = field(default_factory=dict)  # positions by layer
    # the same of layers that are compressed again, where their pairs are
    places: dict[int, Int[Tensor, "h k"]] = field(default_factory=dict)
    slots: tuple[tuple[int, ...], Slots] | None = None  # of this pass, and what they go by

    def __post_init__(self) -> None:
        self.image: Int[Tensor, "n"] = image_index(self.vision[None])[0]
        self.spot: Int[Tensor, "n"] = spot_index(self.vision[None])[0]

    @property
    def length(self) -> int:
        """Tokens that are compressed."""
        return self.order.length

    @property
    def goes_on(self) -> bool:
        """Whether it is compressed at more than its prompt's end."""
        return any(share.every.tokens for share in self.order.shares.values())


class Row(NamedTuple):
    """A request in a pass that adds ``new`` tokens to ``computed``; its queries start at ``start``
    of the pass's. ``table`` is its whole row of a group's block table, without whose first
    ``before`` blocks it is seen, and ``written`` the same where pairs that stay move to. Its next
    boundary is ``until`` so many tokens: then it leaves its
    first ``gap`` blocks, and ``kept`` tokens stay, per KV head. ``moves`` says whether the
    scheduler ordered that for this pass. ``budget`` is what scores are told of.
    """

    prompt: RequestPrompt
    before: int
    gap: int
    until: int
    kept: int
    budget: int
    start: int
    computed: int
    new: int
    moves: bool
    table: Int[Tensor, "c"]
    written: Int[Tensor, "c"]

    @property
    def end(self) -> int:
        """How much has been read after this pass, up to the boundary."""
        return min(self.until, self.computed + self.new)

    @property
    def beyond(self) -> int:
        """Tokens of this pass that stand after the boundary: a question after its context, or a
        preempted answer, read again.
        """
        return max(0, self.computed + self.new - self.until)


def in_blocks(policy: Policy, order: Order) -> Policy:
    """The policy, which compresses at the boundaries of an order."""
    every = max((share.every.tokens for share in order.shares.values()), default=0)
    if not every or not isinstance(policy.when, OverBudget):
        return policy
    return replace(policy, when=replace(policy.when, every=every))


def visual(features: Sequence[Any] | None, length: int) -> Bool[Tensor, "n"]:
    """True at the tokens that stand for images and videos, by vLLM's ``mm_features``."""
    marked = torch.zeros(length, dtype=torch.bool, device="cpu")
    for feature in features or ():
        if feature.modality in VISUAL:
            where = feature.mm_position
            part = marked[where.offset : where.offset + where.length]
            embedded = where.is_embed
            part |= True if embedded is None else embedded[: len(part)].to(torch.bool)
    return marked
