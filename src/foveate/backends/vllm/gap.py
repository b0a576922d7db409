"""The gap layout: which blocks of a compressed prompt stay, and what attention sees of them.

A prompt of P tokens fills blocks of B slots, in order. Of these, K tokens are kept, where K is the
budget rounded up until P - K is a multiple of B. They are moved into the first blocks and into the
partly filled last one; the blocks between, the gap, go back to the pool:

    P = 11, B = 4, K = 7      before  |0 1 2 3|4 5 6 7|8 9 10 .|
                              after   |x x x x|  gap  |x x x  .|

So no slot of a later token moves: token 11 is written to slot 11, before and after. Only attention
is told otherwise: the row of the block table without the gap, and a length shorter by its slots.

Everything here is a pure function of lengths and configuration, so the scheduler and every worker
come to the same result without exchanging a word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.core.amount import Amount
from foveate.core.protocols import LayerCounts, Select
from foveate.errors import InvalidBudget


class Gap(NamedTuple):
    """Blocks ``first`` to ``last`` (exclusive) of a prompt, counted from its start."""

    first: int
    last: int

    @property
    def blocks(self) -> int:
        """How many blocks are freed."""
        return self.last - self.first


class Protected(NamedTuple):
    """What a selection always keeps of a long prompt: ``tokens``, and a share of the budget."""

    tokens: int
    share: Fraction

    @classmethod
    def of(cls, select: Select) -> Protected:
        """What it protects; its field ``recent`` is the only one that can be a share."""
        recent = getattr(select, "recent", 0)
        share = Fraction(0) if isinstance(recent, int) else Fraction(str(recent))
        return cls(select.protects, share)

    def of_budget(self, average: int, prompt: int) -> int:
        """Tokens of that prompt, at that budget."""
        return min(prompt, self.tokens + average * self.share.numerator // self.share.denominator)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Compressed layers, by their places, that keep the same number: the mean of what the budget's
    ``counts`` give them, rounded up.
    """

    counts: LayerCounts
    protected: Protected
    layers: tuple[int, ...]

    def wanted(self, average: int, prompt: int) -> int:
        """Tokens wanted of a prompt of which the layers keep ``average`` on average."""
        if average >= prompt:
            return prompt
        each = self.counts(average, self.protected.of_budget(average, prompt), prompt)
        return -(-sum(each[place] for place in self.layers) // len(self.layers))


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many tokens of a prompt stay, at least: a share of it or a number, and not below
    ``least``; in layers of a ``tier``, what the budget gives these. Hashable, and small enough to
    travel with every KV cache group.
    """

    share: Fraction | None
    tokens: int
    least: int = 1
    tier: Tier | None = None

    @classmethod
    def of(cls, amount: Amount, least: int) -> Room:
        """The room that a budget gives.

        Raises:
            InvalidBudget: a budget in bytes, which depends on all prompts of a batch.
        """
        if amount.kind == "bytes":
            raise InvalidBudget(
                f"budget {amount} counts bytes of a whole batch, and a server has no fixed batch. "
                "Give a share of the prompt (20%) or a number of tokens."
            )
        share = amount.value if amount.kind == "fraction" else None
        return cls(
            share=share, tokens=int(amount.value) if share is None else 0, least=max(1, least)
        )

    def average(self, prompt: int) -> int:
        """The budget of a prompt, on average over the layers; a share is rounded down, as
        everywhere else.
        """
        share = self.share
        given = self.tokens if share is None else prompt * share.numerator // share.denominator
        return max(given, self.least)

    def wanted(self, prompt: int) -> int:
        """Tokens wanted of a prompt."""
        average = self.average(prompt)
        return average if self.tier is None else self.tier.wanted(average, prompt)

    def gap(self, prompt: int, block: int) -> Gap:
        """The blocks that a prompt of that length leaves, in blocks of ``block`` slots.

        Blocks that hold later tokens as well never go, and the tokens kept are never fewer than
        wanted; they are more by up to ``block - 1``.
        """
        last = prompt // block
        return Gap(last - min(last, max(0, prompt - self.wanted(prompt)) // block), last)

    def kept(self, prompt: int, block: int) -> int:
        """Tokens kept, per KV head: those wanted, and as many more as whole blocks ask for."""
        return prompt - self.gap(prompt, block).blocks * block

    def budget(self, prompt: int, block: int) -> int:
        """The budget that scores and selections are told: what is kept, and where layers differ,
        the average before anything is rounded.
        """
        return self.kept(prompt, block) if self.tier is None else self.average(prompt)


def gaps_of(room: Room, block: int) -> Callable[[int], Gap]:
    """``room.gap`` of a prompt's length; it is asked of every request in every step."""
    return lru_cache(maxsize=4096)(lambda prompt: room.gap(prompt, block))


class Phase(Enum):
    """Where a request stands in a forward pass that computes some of its tokens."""

    READING = "the prompt goes on after this pass"
    FINISHING = "this pass holds the prompt's last token, and maybe some beyond"
    ANSWERING = "the prompt was complete before this pass"

    @classmethod
    def of(cls, prompt: int, computed: int, new: int) -> Phase:
        """Of a request that had ``computed`` tokens in the cache and now gets ``new`` ones."""
        if computed >= prompt:
            return cls.ANSWERING
        return cls.FINISHING if computed + new >= prompt else cls.READING


def kept_slots(gap: Gap, prompt: int, block: int) -> Int[Tensor, "k"]:
    """The slots that kept tokens move into, ascending, counted from the request's first slot."""
    return torch.cat([torch.arange(gap.first * block), torch.arange(gap.last * block, prompt)])


def physical(slots: Int[Tensor, "k"], row: Int[Tensor, "c"], block: int) -> Int[Tensor, "k"]:
    """The pool's slots behind a request's slots, given its row of the block table."""
    return row.long()[slots // block] * block + slots % block


def view(
    table: Int[Tensor, "r c"], lengths: Int[Tensor, "r"], gaps: list[Gap], block: int
) -> tuple[Int[Tensor, "r c"], Int[Tensor, "r"]]:
    """Block table and lengths as attention is to see them: rows without their gap.

    Rows whose prompt is not compressed yet come with an empty gap and stay as they are. The
    results have the type and device of what was given, which is not changed. Columns past a row's
    length hold the row's last column: they are never read.
    """
    both = torch.tensor([[gap.first for gap in gaps], [gap.blocks for gap in gaps]])
    first, blocks = both.to(table.device, non_blocking=True)  # one copy, and nobody waits for it
    columns = torch.arange(table.shape[1], device=table.device)[None]
    source = columns + torch.where(columns >= first[:, None], blocks[:, None], 0)
    seen = table.gather(1, source.clamp_max(table.shape[1] - 1))
    return seen, (lengths - blocks.to(lengths.device) * block).to(lengths.dtype)


NO_GAP = Gap(0, 0)
"""What a request has whose prompt is not compressed."""
