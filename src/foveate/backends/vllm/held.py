"""Which blocks the scheduler holds for a request, as far as its steps have said: a worker's own
books, against which everything is checked that attention is about to read or to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foveate.backends.vllm.orders import Orders


@dataclass
class Books:
    """Of one request, by KV cache group: how many ``blocks`` its table has, and which is the
    ``first`` that is still held. Its first ``shared`` tokens lie where other requests read as well.
    """

    shared: int
    blocks: list[int]
    first: Mapping[int, int] = field(default_factory=dict)


class RequestBooks:
    """The books of all requests."""

    def __init__(self) -> None:
        self._books: dict[str, Books] = {}

    def learn(self, output: Any, orders: Orders) -> None:
        """What a step's ``SchedulerOutput`` says of blocks."""
        for name in output.finished_req_ids:
            self._books.pop(name, None)
        for new in output.scheduled_new_reqs:
            counts = [len(ids) for ids in new.block_ids]
            self._books[new.req_id] = Books(new.num_computed_tokens, counts)
        old = output.scheduled_cached_reqs
        each = zip(old.req_ids, old.new_block_ids, old.num_computed_tokens, strict=True)
        for name, more, computed in each:
            if name in old.resumed_req_ids:
                self._books[name] = Books(computed, [len(ids) for ids in more])
            elif more is not None and name in self._books:
                blocks = self._books[name].blocks
                for group, ids in enumerate(more):
                    blocks[group] += len(ids)
        for name, first in orders.holds.items():
            if name in self._books:
                self._books[name].first = first

    def reads(self, name: str, group: int, first: int, end: int, block: int) -> str | None:
        """What is wrong with reading a request's tokens up to ``end``, without its ``first``
        blocks; None if the scheduler holds all of these blocks for it.
        """
        if (books := self._books.get(name)) is None:
            return "the scheduler has told of no blocks"
        if first < (held := books.first.get(group, 0)):
            return f"its block {first} would be read, and the scheduler holds them from {held} on"
        if end > (most := books.blocks[group] * block):
            return f"{end} tokens would be read from blocks for {most}"
        return None

    def moves(self, name: str, first: int) -> str | None:
        """What is wrong with writing a request's tokens from ``first`` on once more; None if no
        other request reads them.
        """
        if first < (shared := self._books[name].shared):
            return f"its token {first} would be moved, and others may read its first {shared}"
        return None
