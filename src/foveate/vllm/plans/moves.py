"""Moves of kept pairs within the pool: the scheduler decides them, and workers compare them with
their own books before they move anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Replacement(NamedTuple):
    """The block that a step reads at one place of a request's table, and the block that it writes
    to there, which later steps read. Both are numbers of the pool; they are equal where no other
    request can read the block any longer.
    """

    before: int
    after: int


class Move(NamedTuple):
    """A step's move of a request's kept pairs, in one KV cache group: into the slots from the block
    ``first`` up to the boundary ``end``, a number of tokens. ``replaced`` are the blocks that other
    requests could have read, by their place in the request's table.
    """

    first: int
    end: int
    replaced: Mapping[int, Replacement] = {}

    def __str__(self) -> str:
        return f"a move into the blocks from {self.first} on, at token {self.end}"
