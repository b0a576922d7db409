"""Boundaries: the tokens of a request at which its cache is compressed, and its peak of blocks.

By default the only boundary is the prompt's end. Under ``when=over_budget(every=N)`` heads that
keep K tokens are compressed whenever they hold N more, while the prompt is read (``reading=true``),
while it is answered, or both, N rounded up to whole blocks:

    reading      J + N, J + 2 N, ... < P, and at P           P: tokens of the prompt
    answering    P + N, P + 2 N, ...                         K + N, ... if all of the prompt stays

At a boundary c the K kept pairs move into the slots [c - K, c), and the blocks before these, the
gap, go back to the pool. So the gap follows from the number of processed tokens, it only grows, and
later tokens are written where vLLM writes them anyway. Steps end at boundaries, so that a pass sees
every token under the gap of the boundary before it, and a request that was preempted reaches the
same state again.

At the prompt's end K depends on P modulo the block size, as only whole blocks are freed. Before it
J pairs are kept, the budget in whole blocks. So the boundaries within a prompt, and the pairs kept
at them, follow from the tokens before them and not from the prompt's length: prompts with the same
beginning share them.

Everything here is a pure function of lengths and configuration, as in ``gap``.
"""

from __future__ import annotations

from typing import NamedTuple

from foveate.policies.protocols import When
from foveate.stages.when import OverBudget


class Every(NamedTuple):
    """Interval of compression beside the prompt's end: a request is compressed whenever its heads
    hold ``tokens`` more than they kept, while ``reading`` its prompt, ``answering``, or both.
    0: never.
    """

    tokens: int = 0
    reading: bool = False
    answering: bool = False

    @classmethod
    def of(cls, when: When) -> Every:
        """Return the interval of a policy's ``when`` stage."""
        if not isinstance(when, OverBudget) or not (when.reading or when.answering):
            return cls()
        return cls(when.every, when.reading, when.answering)

    def in_blocks(self, block: int) -> Every:
        """Return the interval in whole blocks of ``block`` tokens."""
        return self._replace(tokens=-(-self.tokens // block) * block)


NEVER = Every()


class Move(NamedTuple):
    """A step's move of a request's kept pairs in one KV cache group: into the slots from block
    ``first`` on, up to the boundary after ``end`` tokens.
    """

    first: int
    end: int

    def __str__(self) -> str:
        return f"a move into the blocks from {self.first} on, at token {self.end}"


class Boundaries(NamedTuple):
    """Boundaries of a request in one KV cache group, decided once by the scheduler.

    The first ``length`` tokens of the prompt are compressed, which frees their first ``freed``
    blocks. At most ``kept`` pairs per KV head are kept at a boundary, or ``within`` at one inside
    the prompt. ``within`` and ``every`` are whole blocks. ``budget`` is passed to scores and
    selections, except inside the prompt.
    """

    length: int
    kept: int
    every: Every = NEVER
    within: int = 0
    budget: int = 0
    freed: int = 0

    @property
    def evicted(self) -> int:
        """Tokens of the prompt that are evicted at its end, per KV head."""
        return max(0, self.length - self.kept)

    def budget_at(self, boundary: int) -> int:
        """Return the budget for scores and selections at a boundary."""
        return self.within if self.every.reading and boundary < self.length else self.budget

    def after(self, tokens: int) -> int | None:
        """Return the next boundary after so many computed tokens; None if there is none."""
        if tokens >= self.length or not self._ends_with_prompt:
            return self._following(self._answer_origin, tokens) if self.every.answering else None
        if not self.every.reading:
            return self.length
        return min(self.length, self._following(self.within, tokens))

    def reached(self, tokens: int) -> int:
        """Return the last boundary among the first ``tokens``. Before the first boundary this is
        the number of pairs kept there, so that the gap comes out as 0.
        """
        if tokens >= self.length:
            origin, continues = self._answer_origin, self.every.answering
        else:
            origin, continues = self.kept_at(tokens), self.every.reading
        return self._following(origin, tokens) - self.every.tokens if continues else origin

    def kept_at(self, tokens: int) -> int:
        """Return the limit of pairs kept at a boundary after so many tokens."""
        return self.within if self.every.reading and tokens < self.length else self.kept

    def boundaries_within(self, tokens: int) -> range:
        """Return the boundaries within the prompt up to so many tokens, the last one first."""
        first, every = self.within + self.every.tokens, self.every.tokens
        if not self.every.reading or (last := min(tokens, self.length - 1)) < first:
            return range(0)
        return range(first, last + 1, every)[::-1]

    @property
    def _ends_with_prompt(self) -> bool:
        """True if the prompt's end is a boundary; a prompt below the budget ends without one."""
        return not self.every.tokens or self.kept < self.length

    @property
    def _answer_origin(self) -> int:
        """Token from which the boundaries of the answer are counted."""
        return max(self.length, self.kept)

    def _following(self, origin: int, tokens: int) -> int:
        every = self.every.tokens
        return origin + (max(0, tokens - origin) // every + 1) * every

    def gap(self, tokens: int, block: int) -> int:
        """Return the number of first blocks, of ``block`` slots, that are free once so many tokens
        have been processed.
        """
        return max(0, self.reached(tokens) - self.kept_at(tokens)) // block

    def move(self, computed: int, end: int, block: int, *, last: int | None = None) -> Move | None:
        """Return the move of a step that computes a request's tokens from ``computed`` to ``end``.

        This is the only rule for it: the scheduler sends the move, and workers compare it with
        their own. ``last`` is the limit of tokens that the request computes, if known.

        Returns:
            None if the step reaches no boundary, if no block becomes free at the boundary, or if
            the request ends there, so that moved pairs would never be read.
        """
        boundary = self.after(computed)
        if boundary is None or end < boundary or (last is not None and boundary >= last):
            return None
        first = self.gap(boundary, block)
        return Move(first, boundary) if first > self.gap(computed, block) else None

    @property
    def untouched(self) -> int:
        """Number of first tokens in slots that no move ever writes to."""
        first = self.after(0)
        if first is None or first <= self.kept_at(first):
            return self.length
        return min(self.length, first - self.kept_at(first))

    def peak(self, tokens: int, ahead: int) -> int:
        """Return the largest number of slots in use at once until so many tokens are processed.

        Up to ``ahead`` steps are in flight at once; blocks that they read are freed after them.
        """
        read = min(tokens, self.length)
        answered = tokens - read
        room = self.kept + self.every.tokens
        if self.every.reading:
            read = min(read, self.within + ahead * self.every.tokens)
        if answered:
            rest = self.kept + answered if self.kept < self.length else tokens
            read = max(read, min(rest, room) if self.every.answering else rest) + ahead
        return min(tokens, read)
