"""What attention sees of the block table, in memory that stays where it is."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor


class Buffers:
    """A block table and lengths that are overwritten for every pass, and never move.

    A captured CUDA graph reads the addresses that it saw when it was captured. ``rows`` is the most
    requests that a pass can have, so nothing has to grow later.
    """

    def __init__(self, rows: int):
        self._rows = rows
        self._table: Int[Tensor, "r c"] | None = None
        self._lengths: Int[Tensor, "r"] | None = None

    def hold(
        self, table: Int[Tensor, "n c"], lengths: Int[Tensor, "n"]
    ) -> tuple[Int[Tensor, "n c"], Int[Tensor, "n"]]:
        """The same numbers, in the first ``n`` rows of the buffers."""
        if self._table is None or self._lengths is None:
            rows = max(self._rows, len(table))
            self._table = table.new_zeros((rows, table.shape[1]))
            self._lengths = lengths.new_zeros((rows,))
        mine, ends = self._table[: len(table)], self._lengths[: len(lengths)]
        mine.copy_(table)
        ends.copy_(lengths)
        return mine, ends
