"""The gap layout of compressed prompts: the blocks that they keep, and attention's view of them.

A prompt of P tokens fills blocks of B slots, in order. Of these, K tokens are kept, where K is the
budget rounded up until P - K is a multiple of B. They are moved into the prompt's last slots, and
the blocks before them, the gap, go back to the pool:

    P = 11, B = 4, K = 7      before  |0 1 2 3|4 5 6 7|8 9 10 .|
                              after   |  gap  |x x x x|x x x  .|

So no slot of a later token moves: token 11 is written to slot 11, before and after. Only attention
gets another view: the row of the block table without the gap, and a length shorter by its slots.
No block of the gap is ever written to. Until the pool reuses it, it still holds the tokens that
vLLM's prefix caching knows it by, and other prompts with the same beginning may read it.

Everything here is a pure function of lengths and configuration. Only the scheduler calls it to
decide the kept count of a prompt; workers follow its orders (``orders``).
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
    """Tokens that a selection always keeps of a long prompt: ``tokens``, plus a ``share`` of the
    budget.
    """

    tokens: int
    share: Fraction

    @classmethod
    def of(cls, select: Select) -> ProtectedTokens:
        """Return the protected tokens of a selection; only its field ``recent`` can be a share."""
        recent = getattr(select, "recent", 0)
        share = Fraction(0) if isinstance(recent, int) else Fraction(str(recent))
        sinks = getattr(select, "sinks", 0)
        return cls(sinks + (recent if isinstance(recent, int) else 0), share)

    def of_budget(self, average: int, prompt: int) -> int:
        """Return the protected tokens of a prompt of that length at the budget ``average``."""
        return min(prompt, self.tokens + average * self.share.numerator // self.share.denominator)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Cells (compressed layers, or their KV heads) that keep the same number: the mean of the
    budget's ``counts`` for them, rounded up.
    """

    counts: LayerCounts
    protected: ProtectedTokens
    cells: tuple[int, ...]

    def target(self, average: int, prompt: int) -> int:
        """Return the tokens for these cells to keep if all cells keep ``average`` on average."""
        if average >= prompt:
            return prompt
        counts = self.counts(average, self.protected.of_budget(average, prompt), prompt)
        return -(-sum(counts[cell] for cell in self.cells) // len(self.cells))


@dataclass(frozen=True, kw_only=True)
class Room:
    """Lower bound of the tokens kept of a prompt: a ``share`` of it or ``tokens``, and never below
    ``least``; in cells of a ``tier``, the budget's counts for these. ``every`` is the interval of
    compression beside the prompt's end. Hashable, and small enough to travel with every KV cache
    group.
    """

    share: Fraction | None
    tokens: int
    least: int = 1
    tier: Tier | None = None
    every: Every = NEVER

    @classmethod
    def of(cls, amount: Amount, least: int) -> Room:
        """Return the room for a budget.

        Raises:
            InvalidBudget: a budget in bytes, which depends on all prompts of a batch, or an auto
                budget, which depends on the scores.
        """
        return cls(share=None, tokens=0, least=max(1, least)).at(amount)

    def at(self, amount: Amount) -> Room:
        """Return this room with another budget; raise as :meth:`of`."""
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
        """Return the budget of a prompt in tokens, averaged over the cells; shares round down."""
        share = self.share
        tokens = self.tokens if share is None else prompt * share.numerator // share.denominator
        return max(tokens, self.least)

    def target(self, prompt: int) -> int:
        """Return the tokens to keep of a prompt, before they are rounded up to whole blocks."""
        average = self.average(prompt)
        return average if self.tier is None else self.tier.target(average, prompt)

    def gap(self, prompt: int, block: int) -> int:
        """Return the number of first blocks, of ``block`` slots, that a prompt of that size frees.

        A block that also holds later tokens is never freed. The tokens kept are never fewer than
        the target; they may be up to ``block - 1`` more.
        """
        return max(0, prompt - self.target(prompt)) // block

    def kept(self, prompt: int, block: int) -> int:
        """Return the tokens kept per KV head: the target, rounded up so that whole blocks go."""
        return prompt - self.gap(prompt, block) * block

    def budget(self, prompt: int, block: int) -> int:
        """Return the budget for scores and selections: the kept tokens, or where cells differ, the
        average before rounding. An answer may fill the part that its prompt leaves free.
        """
        if self.every.answering:
            return max(self.kept(prompt, block), self.target(prompt))
        return self.kept(prompt, block) if self.tier is None else self.average(prompt)


def kept_slots(gap: int, until: int, block: int) -> Int[Tensor, "k"]:
    """Return the target slots of kept tokens, ascending, counted from the request's first slot;
    ``until`` is the boundary at which the request is compressed.
    """
    return torch.arange(gap * block, until, device="cpu")


def physical(slots: Int[Tensor, "k"], row: Int[Tensor, "c"], block: int) -> Int[Tensor, "k"]:
    """Return the pool's slots behind a request's slots, given its row of the block table."""
    return row.long()[slots // block] * block + slots % block


def view(
    table: Int[Tensor, "r c"], lengths: Int[Tensor, "r"], gaps: list[int], block: int
) -> tuple[Int[Tensor, "r c"], Int[Tensor, "r"]]:
    """Return the block table and lengths for attention: rows without their gap.

    Rows whose prompt is not compressed yet have a gap of 0 and stay as they are. The results have
    the arguments' type and device; the arguments are not changed. Columns past a row's length
    repeat the row's last column: they are never read.
    """
    left = torch.tensor(gaps, dtype=torch.long, device="cpu")
    left = left.to(table.device, non_blocking=True)  # one copy, without a device sync
    columns = torch.arange(table.shape[1], device=table.device)[None] + left[:, None]
    seen = table.gather(1, columns.clamp_max(table.shape[1] - 1))
    return seen, (lengths - left.to(lengths.device) * block).to(lengths.dtype)


class Buffers:
    """A block table and lengths at fixed addresses, overwritten for every pass.

    A captured CUDA graph reads the addresses that it saw when it was captured. ``rows`` is the
    largest number of requests in a pass, so the buffers never grow.
    """

    def __init__(self, rows: int):
        self._rows = rows
        self._table: Int[Tensor, "r c"] | None = None
        self._lengths: Int[Tensor, "r"] | None = None

    def fill(
        self, table: Int[Tensor, "n c"], lengths: Int[Tensor, "n"]
    ) -> tuple[Int[Tensor, "n c"], Int[Tensor, "n"]]:
        """Copy both into the first ``n`` rows of the buffers, and return these rows."""
        if self._table is None or self._lengths is None:
            rows = max(self._rows, len(table))
            self._table = table.new_zeros((rows, table.shape[1]))
            self._lengths = lengths.new_zeros((rows,))
        mine, ends = self._table[: len(table)], self._lengths[: len(lengths)]
        mine.copy_(table)
        ends.copy_(lengths)
        return mine, ends
