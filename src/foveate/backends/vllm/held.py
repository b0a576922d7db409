"""Which blocks the scheduler holds for a request, as far as its steps have said: a worker's own
books, against which everything is checked that attention is about to read or to move. They also
know what vLLM's tables do not: which blocks have taken the place of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foveate.backends.vllm.orders import Orders
from foveate.backends.vllm.replacing import Replacement


@dataclass
class Books:
    """Of one request, by KV cache group: how many ``blocks`` its table has, and which is the
    ``first`` that is still held. Its first ``shared`` tokens lie where other requests may read as
    well, but for its ``own`` blocks, which took the place of others; of those that did so in this
    step ``read`` are the others. Both are blocks' numbers by group and place.
    """

    shared: int
    blocks: list[int]
    first: Mapping[int, int] = field(default_factory=dict)
    own: dict[int, dict[int, int]] = field(default_factory=dict)
    read: dict[int, dict[int, int]] = field(default_factory=dict)
    following: int = 0  # ``shared`` once this step is over, after which a snapshot is made

    def turn(self) -> None:
        """A step is over."""
        self.shared, self.read = max(self.shared, self.following), {}

    def replace(self, group: int, blocks: Mapping[int, Replacement]) -> None:
        """Blocks of that group take the place of others, by place; those before the first that is
        held are read no more.
        """
        own, first = self.own.get(group, {}), self.first.get(group, 0)
        self.own[group] = {place: block for place, block in own.items() if place >= first}
        self.own[group] |= {place: one.after for place, one in blocks.items()}
        self.read[group] = {place: one.before for place, one in blocks.items()}


class RequestBooks:
    """The books of all requests."""

    def __init__(self) -> None:
        self._books: dict[str, Books] = {}

    def learn(self, output: Any, orders: Orders) -> None:
        """What a step's ``SchedulerOutput`` says of blocks."""
        for books in self._books.values():
            books.turn()
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
        for name, groups in orders.replaced.items():
            for group, replaced in groups.items():
                self._books[name].replace(group, replaced)
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed |= dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
        for name in orders.saves:
            self._books[name].following = computed[name] + output.num_scheduled_tokens[name]

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

    def shared(self, name: str) -> int:
        """How many of a request's first tokens lay in the pool when it began."""
        books = self._books.get(name)
        return 0 if books is None else books.shared

    def moves(self, name: str, group: int, first: int, block: int) -> str | None:
        """What is wrong with writing a request's blocks from ``first`` on once more; None if no
        other request reads them.
        """
        books = self._books[name]
        own = books.own.get(group, {})
        for place in range(first, -(-books.shared // block)):
            if place not in own:
                return (
                    f"its token {place * block} would be moved, and others may read its first "
                    f"{books.shared}"
                )
        return None

    def own(self, name: str, group: int) -> Mapping[int, int]:
        """The numbers of a request's blocks, by place, that took the place of those in vLLM's
        table.
        """
        return self._books[name].own.get(group, {}) if name in self._books else {}

    def still_read(self, name: str, group: int) -> Mapping[int, int]:
        """The numbers of the blocks that this step reads where later ones read the request's own,
        by place.
        """
        return self._books[name].read.get(group, {})
