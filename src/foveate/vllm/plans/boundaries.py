"""At which tokens of a request its cache is compressed, and how many blocks it holds at most.

Without more that is the prompt's end. Under ``when=over_budget(every=N)`` heads that keep K tokens
are compressed whenever they hold N more, while the prompt is read (``reading=true``), while it is
answered, or both, N rounded up to whole blocks:

    reading      J + N, J + 2 N, ... < P, and at P           P: tokens of the prompt
    answering    P + N, P + 2 N, ...                         K + N, ... if all of the prompt stays

At a boundary c the K pairs that stay move into the slots [c - K, c), and the blocks before these,
the gap, go back to the pool. So the gap follows from how many tokens have been processed, it only
grows, and later tokens are written where vLLM writes them anyway. Steps end at boundaries, so that
a pass sees every token under the gap of the boundary before it, and a request that was preempted
comes to the same state again.

At the prompt's end K depends on where P stands in its block, as whole blocks leave. Before it J
pairs stay, the budget in whole blocks. So these boundaries, and what is kept at them, follow from
the tokens before them and not from the prompt's length: prompts that begin alike come to the same.

Everything here is a pure function of lengths and configuration, as in ``gap``.
"""

from __future__ import annotations

from typing import NamedTuple

from foveate.policies.protocols import When
from foveate.stages.when import OverBudget


class Every(NamedTuple):
    """Beside the prompt's end a request is compressed whenever its heads hold so many ``tokens``
    more than they kept: while its prompt is read, while it is answered, or both. 0: never.
    """

    tokens: int = 0
    reading: bool = False
    answering: bool = False

    @classmethod
    def of(cls, when: When) -> Every:
        """Return the interval that a rule sets."""
        if not isinstance(when, OverBudget) or not (when.reading or when.answering):
            return cls()
        return cls(when.every, when.reading, when.answering)

    def in_blocks(self, block: int) -> Every:
        """Return the interval in whole blocks of ``block`` tokens."""
        return self._replace(tokens=-(-self.tokens // block) * block)


NEVER = Every()


class Move(NamedTuple):
    """A step's move of a request's kept pairs, in one KV cache group: into the slots from the block
    ``first`` up to the boundary ``end``, a number of tokens.
    """

    first: int
    end: int

    def __str__(self) -> str:
        return f"a move into the blocks from {self.first} on, at token {self.end}"


class Boundaries(NamedTuple):
    """Boundaries of a request in one KV cache group, decided once by the scheduler.

    The first ``length`` tokens of the prompt are compressed, and leave their first ``freed``
    blocks. At each boundary ``kept`` pairs stay per KV head, or all if there are not more; at
    boundaries within the prompt ``within``, which are whole blocks. ``every`` is in whole blocks,
    too. ``budget`` is passed to scores and selections, except within the prompt.
    """

    length: int
    kept: int
    every: Every = NEVER
    within: int = 0
    budget: int = 0
    freed: int = 0

    @property
    def left(self) -> int:
        """Tokens of the prompt that leave at its end, per KV head."""
        return max(0, self.length - self.kept)

    def budget_at(self, boundary: int) -> int:
        """Return the budget that scores and selections are passed at a boundary."""
        return self.within if self.every.reading and boundary < self.length else self.budget

    def after(self, tokens: int) -> int | None:
        """Return the next boundary after so many computed tokens; None if there is none."""
        if tokens >= self.length or not self._ends_with_prompt:
            return self._following(self._answers_from, tokens) if self.every.answering else None
        if not self.every.reading:
            return self.length
        return min(self.length, self._following(self.within, tokens))

    def reached(self, tokens: int) -> int:
        """Return the last boundary among the first ``tokens``; before there is one, what stays at
        it.
        """
        if tokens >= self.length:
            origin, goes_on = self._answers_from, self.every.answering
        else:
            origin, goes_on = self.stays(tokens), self.every.reading
        return self._following(origin, tokens) - self.every.tokens if goes_on else origin

    def stays(self, tokens: int) -> int:
        """How many pairs stay at a boundary after so many tokens, if there are more."""
        return self.within if self.every.reading and tokens < self.length else self.kept

    def begins(self, tokens: int) -> range:
        """Return the boundaries within the prompt up to so many tokens, the last one first."""
        first, every = self.within + self.every.tokens, self.every.tokens
        if not self.every.reading or (most := min(tokens, self.length - 1)) < first:
            return range(0)
        return range(first, most + 1, every)[::-1]

    @property
    def _ends_with_prompt(self) -> bool:
        """Whether the prompt's end is a boundary: not where all of it stays for now."""
        return not self.every.tokens or self.kept < self.length

    @property
    def _answers_from(self) -> int:
        """Where the boundaries of the answer are counted from."""
        return max(self.length, self.kept)

    def _following(self, origin: int, tokens: int) -> int:
        every = self.every.tokens
        return origin + (max(0, tokens - origin) // every + 1) * every

    def gap(self, tokens: int, block: int) -> int:
        """How many of the first blocks, of ``block`` slots, a request holds no longer once so many
        tokens have been processed.
        """
        return max(0, self.reached(tokens) - self.stays(tokens)) // block

    def move(self, computed: int, end: int, block: int, *, last: int | None = None) -> Move | None:
        """Return the move of a step that computes a request's tokens from ``computed`` to ``end``.

        This is the only rule for it: the scheduler sends what it returns, and workers compare.
        ``last`` is how many tokens the request computes at most, if that is known.

        Returns:
            None if the step reaches no boundary, if no block becomes free at the boundary, or if
            the request ends there and nobody reads what would be moved.
        """
        boundary = self.after(computed)
        if boundary is None or end < boundary or (last is not None and boundary >= last):
            return None
        first = self.gap(boundary, block)
        return Move(first, boundary) if first > self.gap(computed, block) else None

    @property
    def untouched(self) -> int:
        """How many of the first tokens lie where nothing is ever moved to."""
        first = self.after(0)
        if first is None or first <= self.stays(first):
            return self.length
        return min(self.length, first - self.stays(first))

    def peak(self, tokens: int, ahead: int) -> int:
        """Return the most slots that are held at once on the way to so many tokens, from a whole
        block on, while up to ``ahead`` steps are on their way: what they read is freed after them.
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
