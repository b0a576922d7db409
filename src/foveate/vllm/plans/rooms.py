"""Rooms of one KV cache group, which determine the boundaries of each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from foveate.policies.amount import Amount
from foveate.vllm.plans.boundaries import Boundaries
from foveate.vllm.plans.gap import Room

Key = tuple[int, Amount, int]
"""Number of the policy, its budget, and the number of tokens that are compressed."""


class Rooms:
    """Rooms of one KV cache group in blocks of ``block`` tokens, one for each of the engine's
    policies.
    """

    def __init__(self, rooms: Sequence[Room], block: int):
        self._rooms, self.block = rooms, block
        self._room = lru_cache(maxsize=256)(lambda index, amount: self._rooms[index].at(amount))
        self.boundaries: Callable[[Key], Boundaries] = lru_cache(maxsize=1024)(self._boundaries)

    def own(self, length: int) -> Boundaries:
        """Return the boundaries of a prompt of that length under the engine's own policy."""
        return self._of(self._rooms[0], length)

    def _boundaries(self, key: Key) -> Boundaries:
        return self._of(self._room(*key[:2]), key[2])

    def _of(self, room: Room, length: int) -> Boundaries:
        every, budget = room.every.in_blocks(self.block), room.budget(length, self.block)
        within = -(-room.target(length) // self.block) * self.block if every.reading else 0
        kept = budget if every.tokens else room.kept(length, self.block)
        return Boundaries(length, kept, every, within, budget, room.gap(length, self.block))
