"""A worker's books of the blocks that the scheduler holds for each request, kept from its steps.
Every read and every move is checked against them before it happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from foveate.vllm.plans.boundaries import Move
from foveate.vllm.plans.orders import Orders, computed_tokens


@dataclass
class Books:
    """Books of one request, by KV cache group: the number of ``blocks`` in its table, and the
    ``first`` block not freed yet. Other requests may read its first ``shared`` tokens as well.
    """

    shared: int
    blocks: list[int]
    first: Mapping[int, int] = field(default_factory=dict)


class RequestBooks:
    """Books of all requests, and the moves of this step."""

    def __init__(self) -> None:
        self._books: dict[str, Books] = {}
        self._moves: Mapping[str, Mapping[int, Move]] = {}

    def learn(self, output: Any, orders: Orders) -> None:
        """Update the books from a step's ``SchedulerOutput`` and orders."""
        # requests in ``starts`` begin with copies of blocks, so nobody else reads theirs
        computed = computed_tokens(output) | dict.fromkeys(orders.starts, 0)
        for name in output.finished_req_ids:
            self._books.pop(name, None)
        for new in output.scheduled_new_reqs:
            if new.req_id in orders.goes_on:
                self._books[new.req_id].blocks = [len(ids) for ids in new.block_ids]
            else:
                self._begin(new.req_id, computed, new.block_ids)
        old = output.scheduled_cached_reqs
        for name, more in zip(old.req_ids, old.new_block_ids, strict=True):
            if name in old.resumed_req_ids:
                self._begin(name, computed, more)
            elif more is not None and name in self._books:
                blocks = self._books[name].blocks
                for group, ids in enumerate(more):
                    blocks[group] += len(ids)
        for name, first in orders.first_blocks.items():
            if name in self._books:
                self._books[name].first = first
        self._moves = orders.moves

    def _begin(self, name: str, computed: Mapping[str, int], blocks: Any) -> None:
        self._books[name] = Books(computed[name], [len(ids) for ids in blocks])

    def reads(self, name: str, group: int, first: int, end: int, block: int) -> str | None:
        """Return why a request's tokens up to ``end``, without its ``first`` blocks, must not be
        read; None if the scheduler holds all of these blocks for it.
        """
        if (books := self._books.get(name)) is None:
            return "the scheduler has announced no blocks for it"
        if first < (start := books.first.get(group, 0)):
            return f"its block {first} would be read, and the scheduler holds them from {start} on"
        if end > (slots := books.blocks[group] * block):
            return f"{end} tokens would be read from blocks for {slots}"
        return None

    def moves(self, name: str, group: int, expected: Move | None, block: int) -> str | None:
        """Return why this step's move is forbidden; None if it equals the ``expected`` move, which
        follows from the step's tokens, and writes to no block that another request reads.
        """
        ordered = self.move(name, group)
        if expected != ordered:
            return f"its tokens mean {expected or 'no move'}, and its order {ordered or 'no move'}"
        if ordered and ordered.first * block < self._books[name].shared:
            return f"its order is {ordered}, and others may read its block {ordered.first}"
        return None

    def move(self, name: str, group: int) -> Move | None:
        """Return the move of a request that the scheduler ordered in this step, if any."""
        return self._moves.get(name, {}).get(group)
