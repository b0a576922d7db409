"""The gap layout: which blocks of a compressed prompt stay, and what attention sees of them.

A prompt of P tokens fills blocks of B slots, in order. Of these, K tokens are kept, where K is the
budget rounded up until P - K is a multiple of B. They are moved into the prompt's last slots, and
the blocks before them, the gap, go back to the pool:

    P = 11, B = 4, K = 7      before  |0 1 2 3|4 5 6 7|8 9 10 .|
                              after   |  gap  |x x x x|x x x  .|

So no slot of a later token moves: token 11 is written to slot 11, before and after. Only attention
is told otherwise: the row of the block table without the gap, and a length shorter by its slots.
And no block of the gap is ever written to, so until the pool hands it on it still holds what vLLM's
prefix caching knows it by, and other prompts that begin alike may read it.

Everything here is a pure function of lengths and configuration. The scheduler alone asks it how
much of a prompt stays, and tells the workers (``orders``), which move what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.errors import InvalidBudget
from foveate.policies.amount import Amount
from foveate.policies.protocols import LayerCounts, Select
from foveate.vllm.plans.boundaries import NEVER, Every


class ProtectedTokens(NamedTuple):
    """What a selection always keeps of a long prompt: ``tokens``, and a share of the budget."""

    tokens: int
    share: Fraction

    @classmethod
    def of(cls, select: Select) -> ProtectedTokens:
        """Return what a selection protects; its field ``recent`` is the only one that can be a
        share.
        """
        recent = getattr(select, "recent", 0)
        share = Fraction(0) if isinstance(recent, int) else Fraction(str(recent))
        sinks = getattr(select, "sinks", 0)
        return cls(sinks + (recent if isinstance(recent, int) else 0), share)

    def of_budget(self, average: int, prompt: int) -> int:
        """Tokens of that prompt, at that budget."""
        return min(prompt, self.tokens + average * self.share.numerator // self.share.denominator)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Cells (compressed layers, or KV heads of these) that keep the same number: the mean of what
    the budget's ``counts`` give them, rounded up.
    """

    counts: LayerCounts
    protected: ProtectedTokens
    cells: tuple[int, ...]

    def wanted(self, average: int, prompt: int) -> int:
        """Tokens wanted of a prompt of which the cells keep ``average`` on average."""
        if average >= prompt:
            return prompt
        each = self.counts(average, self.protected.of_budget(average, prompt), prompt)
        return -(-sum(each[cell] for cell in self.cells) // len(self.cells))


@dataclass(frozen=True, kw_only=True)
class Room:
    """How many tokens of a prompt stay, at least: a share of it or a number, and not below
    ``least``; in cells of a ``tier``, what the budget gives these; and how often a request is
    compressed beside its prompt's end. Hashable, and small enough to travel with every KV cache
    group.
    """

    share: Fraction | None
    tokens: int
    least: int = 1
    tier: Tier | None = None
    every: Every = NEVER

    @classmethod
    def of(cls, amount: Amount, least: int) -> Room:
        """Return the room that a budget gives.

        Raises:
            InvalidBudget: a budget in bytes, which depends on all prompts of a batch, or an auto
                one, which depends on the scores.
        """
        return cls(share=None, tokens=0, least=max(1, least)).at(amount)

    def at(self, amount: Amount) -> Room:
        """Return the same room at another budget; raise as :meth:`of`."""
        if amount.kind == "bytes":
            raise InvalidBudget(
                f"budget {amount} counts bytes of a whole batch, and a server has no fixed batch. "
                "Give a share of the prompt (20%) or a number of tokens."
            )
        if amount.kind == "auto":
            raise InvalidBudget(
                f"budget {amount} follows from a prompt's scores, and the blocks that a prompt "
                "frees have to be known before it is read. Give a share of the prompt (20%) or a "
                "number of tokens."
            )
        share = amount.value if amount.kind == "fraction" else None
        return replace(self, share=share, tokens=int(amount.value) if share is None else 0)

    def average(self, prompt: int) -> int:
        """Return the budget of a prompt, on average over the cells; a share is rounded down, as
        everywhere else.
        """
        share = self.share
        given = self.tokens if share is None else prompt * share.numerator // share.denominator
        return max(given, self.least)

    def wanted(self, prompt: int) -> int:
        """Tokens wanted of a prompt."""
        average = self.average(prompt)
        return average if self.tier is None else self.tier.wanted(average, prompt)

    def gap(self, prompt: int, block: int) -> int:
        """How many of its first blocks, of ``block`` slots, a prompt of that length leaves.

        Blocks that hold later tokens as well never go, and the tokens kept are never fewer than
        wanted; they are more by up to ``block - 1``.
        """
        return max(0, prompt - self.wanted(prompt)) // block

    def kept(self, prompt: int, block: int) -> int:
        """Tokens kept, per KV head: those wanted, and as many more as whole blocks ask for."""
        return prompt - self.gap(prompt, block) * block

    def budget(self, prompt: int, block: int) -> int:
        """Return the budget that scores and selections are passed: what is kept, and where cells
        differ, the average before anything is rounded. An answer may fill what its prompt leaves of
        it.
        """
        if self.every.answering:
            return max(self.kept(prompt, block), self.wanted(prompt))
        return self.kept(prompt, block) if self.tier is None else self.average(prompt)


def kept_slots(gap: int, until: int, block: int) -> Int[Tensor, "k"]:
    """Return the slots that kept tokens move into, ascending, counted from the request's first
    slot; ``until`` is the boundary at which the request is compressed.
    """
    return torch.arange(gap * block, until, device="cpu")


def physical(slots: Int[Tensor, "k"], row: Int[Tensor, "c"], block: int) -> Int[Tensor, "k"]:
    """Return the pool's slots behind a request's slots, given its row of the block table."""
    return row.long()[slots // block] * block + slots % block


def view(
    table: Int[Tensor, "r c"], lengths: Int[Tensor, "r"], gaps: list[int], block: int
) -> tuple[Int[Tensor, "r c"], Int[Tensor, "r"]]:
    """Block table and lengths as attention is to see them: rows without their gap.

    Rows whose prompt is not compressed yet come with an empty gap and stay as they are. The
    results have the type and device of what was given, which is not changed. Columns past a row's
    length hold the row's last column: they are never read.
    """
    left = torch.tensor(gaps, dtype=torch.long, device="cpu")
    left = left.to(table.device, non_blocking=True)  # one copy: nobody waits for it
    columns = torch.arange(table.shape[1], device=table.device)[None] + left[:, None]
    seen = table.gather(1, columns.clamp_max(table.shape[1] - 1))
    return seen, (lengths - left.to(lengths.device) * block).to(lengths.dtype)


class Buffers:
    """A block table and lengths that are overwritten for every pass, and never move.

    A captured CUDA graph reads the addresses that it saw when it was captured. ``rows`` is the most
    requests that a pass can have, so nothing has to grow later.
    """

    def __init__(self, rows: int):
        self._rows = rows
        self._table: Int[Tensor, "r c"] | None = None
        self._lengths: Int[Tensor, "r"] | None = None

    def hold(
        self, table: Int[Tensor, "n c"], lengths: Int[Tensor, "n"]
    ) -> tuple[Int[Tensor, "n c"], Int[Tensor, "n"]]:
        """Return the same numbers, in the first ``n`` rows of the buffers."""
        if self._table is None or self._lengths is None:
            rows = max(self._rows, len(table))
            self._table = table.new_zeros((rows, table.shape[1]))
            self._lengths = lengths.new_zeros((rows,))
        mine, ends = self._table[: len(table)], self._lengths[: len(lengths)]
        mine.copy_(table)
        ends.copy_(lengths)
        return mine, ends
