"""Which blocks the scheduler holds for a request, as far as its steps have said: a worker's own
books, against which everything is checked that attention is about to read or to move. They also
know what vLLM's tables do not: which blocks have taken the place of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foveate.vllm.plans.moves import Move
from foveate.vllm.plans.orders import Orders


@dataclass
class Books:
    """Of one request, by KV cache group: how many ``blocks`` its table has, and which is the
    ``first`` that is still held, and the ``moves`` of this step. ``own`` are the numbers of the
    blocks that replaced others, by group and place. Other requests may read the request's first
    ``shared`` tokens as well, but for the places that are ``private`` since they were replaced.
    """

    shared: int
    blocks: list[int]
    first: Mapping[int, int] = field(default_factory=dict)
    own: dict[int, dict[int, int]] = field(default_factory=dict)
    private: dict[int, set[int]] = field(default_factory=dict)
    moves: Mapping[int, Move] = field(default_factory=dict)
    following: int = 0  # ``shared`` once this step is over, after which a snapshot is made

    def end_step(self) -> None:
        """Forget the moves of a step; all that its snapshot covers is shared from then on."""
        if self.following > self.shared:
            self.shared, self.private = self.following, {}
        self.moves = {}

    def order(self, moves: Mapping[int, Move]) -> None:
        """Note the moves of a step; blocks before the first that is held are forgotten."""
        self.moves = moves
        for group, move in moves.items():
            own, first = self.own.get(group, {}), self.first.get(group, 0)
            own = {place: block for place, block in own.items() if place >= first}
            self.own[group] = own | {place: r.after for place, r in move.replaced.items()}
            self.private.setdefault(group, set()).update(move.replaced)


class RequestBooks:
    """The books of all requests."""

    def __init__(self) -> None:
        self._books: dict[str, Books] = {}

    def learn(self, output: Any, orders: Orders) -> None:
        """What a step's ``SchedulerOutput`` says of blocks."""
        for books in self._books.values():
            books.end_step()
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
        for name, moves in orders.moves.items():
            self._books[name].order(moves)
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

    def moves(self, name: str, group: int, expected: Move | None, block: int) -> str | None:
        """Return why this step's move must not be made; None if it is the one that is expected by
        the step's tokens, and writes to no block that another request reads.
        """
        books = self._books[name]
        ordered = books.moves.get(group)
        if (expected and expected[:2]) != (ordered and ordered[:2]):
            return f"its tokens mean {expected or 'no move'}, and its order {ordered or 'no move'}"
        private = books.private.get(group, ())
        written = range(ordered.first, -(-books.shared // block)) if ordered else ()
        if common := [place for place in written if place not in private]:
            return f"its order is {ordered}, and others may read its block {common[0]}"
        return None

    def move(self, name: str, group: int) -> Move | None:
        """Return the move that the scheduler ordered of a request in this step."""
        return self._books[name].moves.get(group) if name in self._books else None

    def own(self, name: str, group: int) -> Mapping[int, int]:
        """The numbers of a request's blocks, by place, that took the place of those in vLLM's
        table.
        """
        return self._books[name].own.get(group, {}) if name in self._books else {}

    def still_read(self, name: str, group: int) -> Mapping[int, int]:
        """The numbers of the blocks that this step reads where later ones read the request's own,
        by place.
        """
        move = self._books[name].moves.get(group)
        return {} if move is None else {place: r.before for place, r in move.replaced.items()}
