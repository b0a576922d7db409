"""What one KV cache group keeps of a prompt; the scheduler decides it, once for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from foveate.policies.amount import Amount
from foveate.vllm.plans.boundaries import NEVER, Boundaries, Every
from foveate.vllm.plans.gap import Room

Key = tuple[int, Amount, int]


class Share(NamedTuple):
    """A prompt leaves its first ``gap`` blocks; ``kept`` of its tokens stay, per KV head. Scores
    and selections are told of ``budget``; at boundaries within the prompt ``within`` stay, and that
    is the budget. ``every`` is in whole blocks.
    """

    gap: int
    kept: int
    budget: int
    every: Every = NEVER
    within: int = 0

    def boundaries(self, length: int) -> Boundaries:
        """Where a request is compressed of whose prompt so many tokens are."""
        kept = self.budget if self.every.tokens else self.kept
        return Boundaries(length, kept, self.every, self.within)

    def budget_at(self, boundary: int, length: int) -> int:
        """What scores and selections are told of at a boundary of a prompt of so many tokens."""
        return self.within if self.every.reading and boundary < length else self.budget


class Rooms:
    """What one KV cache group keeps of prompts, in blocks of ``block`` tokens."""

    def __init__(self, rooms: Sequence[Room], block: int):
        self._rooms, self.block = rooms, block
        self._room = lru_cache(maxsize=256)(lambda index, amount: self._rooms[index].at(amount))
        self._share: Callable[[Key], Share] = lru_cache(maxsize=1024)(self._shared_out)

    def share(self, key: Key) -> Share:
        """Of a prompt, by its plan's key."""
        return self._share(key)

    def own(self, length: int) -> Share:
        """Of a prompt of that length under the engine's own policy, as it is."""
        return self._of(self._rooms[0], length)

    def _shared_out(self, key: Key) -> Share:
        return self._of(self._room(*key[:2]), key[2])

    def _of(self, room: Room, length: int) -> Share:
        gap, every = room.gap(length, self.block), room.every.in_blocks(self.block)
        within = -(-room.wanted(length) // self.block) * self.block if every.reading else 0
        kept, budget = length - gap * self.block, room.budget(length, self.block)
        return Share(gap, kept, budget, every, within)
