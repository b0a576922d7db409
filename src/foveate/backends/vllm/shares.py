"""What one KV cache group keeps of a prompt; the scheduler decides it, once for each request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from foveate.backends.vllm.gap import Room
from foveate.core.amount import Amount

Key = tuple[int, Amount, int]


class Share(NamedTuple):
    """A prompt leaves its first ``gap`` blocks; ``kept`` of its tokens stay, per KV head. Scores
    and selections are told of ``budget``.
    """

    gap: int
    kept: int
    budget: int

    def shared(self, length: int) -> int:
        """How many of the first tokens may lie in blocks that several requests read: where some are
        freed, those in the gap.
        """
        return length - self.kept if self.gap else length


class Rooms:
    """What one KV cache group keeps of prompts, in blocks of ``block`` tokens."""

    def __init__(self, rooms: Sequence[Room], block: int):
        self._rooms, self.block = rooms, block
        self._room = lru_cache(maxsize=256)(lambda index, amount: self._rooms[index].at(amount))
        self._share: Callable[[Key], Share] = lru_cache(maxsize=1024)(self._shared_out)

    def share(self, key: Key) -> Share:
        """Of a prompt, by its plan's key."""
        return self._share(key)

    def _shared_out(self, key: Key) -> Share:
        room, length = self._room(*key[:2]), key[2]
        gap = room.gap(length, self.block)
        return Share(gap, length - gap * self.block, room.budget(length, self.block))
