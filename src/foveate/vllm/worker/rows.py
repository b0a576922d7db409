"""A request's prompt, and its row in a pass of the model."""

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
from foveate.vllm.plans.boundaries import Boundaries
from foveate.vllm.plans.plans import Plan

VISUAL = ("image", "video")


@dataclass
class RequestPrompt:
    """Prompt of the request ``name``, its ``plan``, and the state of its compression. ``vision`` is
    True at visual tokens.
    """

    name: str
    plan: Plan
    policy: Policy
    vision: Bool[Tensor, "n"]
    reading: PromptReading
    # kept positions of each head by layer, if they are recorded
    kept: dict[int, list[Int[Tensor, "k"]]] = field(default_factory=dict)
    # kept positions by layer, if the request is compressed again
    positions: dict[int, Int[Tensor, "h k"]] = field(default_factory=dict)
    slots: tuple[tuple[int, ...], Slots] | None = None  # cache for this pass, with its key

    def __post_init__(self) -> None:
        self.image: Int[Tensor, "n"] = image_index(self.vision[None])[0]
        self.spot: Int[Tensor, "n"] = spot_index(self.vision[None])[0]

    @property
    def length(self) -> int:
        """Number of tokens that are compressed."""
        return self.plan.length


class Row(NamedTuple):
    """A request in a pass that adds ``new`` tokens to ``computed``; its queries begin at ``start``
    in the pass. ``table`` is its complete row of a group's block table, in blocks of ``block``
    tokens; attention sees it without the first ``before`` blocks. Its next boundary is at ``until``
    tokens. ``moves`` is True if the scheduler ordered a move in this pass.
    """

    prompt: RequestPrompt
    boundaries: Boundaries
    table: Int[Tensor, "c"]
    block: int
    before: int
    until: int
    start: int
    computed: int
    new: int
    moves: bool

    @property
    def gap(self) -> int:
        """Number of its first blocks that are free from the boundary on."""
        return self.boundaries.gap(self.until, self.block)

    @property
    def kept(self) -> int:
        """Tokens kept at the boundary, per KV head."""
        return self.until - self.gap * self.block

    @property
    def budget(self) -> int:
        """Budget for scores and selections at the boundary."""
        return self.boundaries.budget_at(self.until)

    @property
    def end(self) -> int:
        """Tokens read after this pass; it ends at the boundary, or before."""
        return self.computed + self.new


def in_blocks(policy: Policy, plan: Plan) -> Policy:
    """Return the policy with its ``every`` rounded up to whole blocks, as in the plan."""
    every = max((each.every.tokens for each in plan.boundaries.values()), default=0)
    if not every or not isinstance(policy.when, OverBudget):
        return policy
    return replace(policy, when=replace(policy.when, every=every))


def visual_mask(features: Sequence[Any] | None, length: int) -> Bool[Tensor, "n"]:
    """Return a mask, True at tokens of images and videos, from vLLM's ``mm_features``."""
    marked = torch.zeros(length, dtype=torch.bool, device="cpu")
    for feature in features or ():
        if feature.modality in VISUAL:
            where = feature.mm_position
            part = marked[where.offset : where.offset + where.length]
            embedded = where.is_embed
            part |= True if embedded is None else embedded[: len(part)].to(torch.bool)
    return marked
