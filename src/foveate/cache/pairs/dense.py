"""Pairs of heads that all have the same number, with room to grow.

Growth copies rarely: it adds a sixteenth, at least ``GROWTH`` tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

GROWTH = 32

Turning = Callable[[Float[Tensor, "*x d"], Int[Tensor, "*x"]], Float[Tensor, "*x d"]]
"""Function from keys and the column of each to new keys."""


class Padded(NamedTuple):
    """A transient view of all slots, right-aligned; ``columns`` is -1 in the empty ones."""

    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    columns: Int[Tensor, "b h n"]


class DensePairs:
    """Pairs [b, h, n, d] with spare room at the end.

    Slots before ``mixed`` have the columns listed in ``columns``; later slots have consecutive
    columns, starting at ``first``. With ``mixed == 0`` and ``first == 0`` slot i is column i.
    """

    def __init__(
        self,
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n e"],
        columns: Int[Tensor, "b h s"] | None = None,
        first: int = 0,
    ):
        self._k, self._v = k.contiguous(), v.contiguous()
        self.columns_of_mixed = None if columns is None else columns.to(torch.int32)
        self.first = first
        self.mixed = 0 if columns is None else columns.shape[2]  # slots with a column listed
        self.compressed = first != 0 or self.mixed != 0  # False while slot i is column i
        self.size = k.shape[2]
        self.max_size: int | None = None  # upper limit of the room, in slots

    @classmethod
    def empty(
        cls, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], room: int
    ) -> DensePairs:
        """Return empty pairs like ``k`` and ``v``, with room for ``room`` slots."""
        pairs = cls(
            k.new_empty(*k.shape[:2], room, k.shape[3]), v.new_empty(*v.shape[:2], room, v.shape[3])
        )
        pairs.size = 0
        return pairs

    @property
    def k(self) -> Float[Tensor, "b h n d"]:
        """Keys of all slots, not a copy."""
        k = self._k
        # Slicing is a call into torch: skip it if all slots are in use.
        is_full = self.size == k.shape[2] and not torch.compiler.is_compiling()
        return k if is_full else k[:, :, : self.size]

    @property
    def v(self) -> Float[Tensor, "b h n e"]:
        """Values of all slots, not a copy."""
        v = self._v
        is_full = self.size == v.shape[2] and not torch.compiler.is_compiling()
        return v if is_full else v[:, :, : self.size]

    def both(self) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        """Return ``k`` and ``v``. One call, because decoding makes it at every layer."""
        k, v, size = self._k, self._v, self.size
        if size == k.shape[2] and not torch.compiler.is_compiling():
            return k, v
        return k[:, :, :size], v[:, :, :size]

    @property
    def with_room(self) -> tuple[Float[Tensor, "b h r d"], Float[Tensor, "b h r e"]]:
        """Keys and values including the spare room."""
        return self._k, self._v

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs stored per row and KV head."""
        return self._k.new_full(self._k.shape[:2], self.size, dtype=torch.long)

    @property
    def longest(self) -> int:
        """Largest number of pairs of a head."""
        return self.size

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors, spare room included."""
        listed = 0 if self.columns_of_mixed is None else self.columns_of_mixed.nbytes
        return self._k.nbytes + self._v.nbytes + listed

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot."""
        newer = self.size - self.mixed
        tail = torch.arange(self.first, self.first + newer, device=self._k.device)
        tail = tail.expand(*self._k.shape[:2], newer)
        if self.columns_of_mixed is None:
            return tail
        return torch.cat([self.columns_of_mixed.long(), tail], dim=2)

    def opened(self) -> DensePairs:
        """Return self: the pairs are in full precision."""
        return self

    def padded(self) -> Padded:
        """Return all slots; nothing is copied."""
        return Padded(self.k, self.v, self.columns)

    @property
    def next_column(self) -> int:
        """The column of the next token."""
        return self.first + self.size - self.mixed

    def tensors(self) -> dict[str, Tensor]:
        """Return every stored tensor by name, without spare room."""
        listed = {} if self.columns_of_mixed is None else {"columns": self.columns_of_mixed}
        return {"k": self.k, "v": self.v} | listed

    def reserve(self, room: int) -> None:
        """Make room for ``room`` slots in all, copying once if necessary."""
        if room <= self._k.shape[2]:
            return
        self._k, self._v = (_enlarged(t, self.size, room) for t in (self._k, self._v))

    def bound(self, more: int) -> None:
        """Limit the room to ``more`` slots beyond those in use."""
        self.max_size = self.size + more
        if self._k.shape[2] > self.max_size:
            self._k, self._v = (_enlarged(t, self.size, self.max_size) for t in (self._k, self._v))

    def cut(self) -> None:
        """Free the spare room; later pairs allocate some again."""
        if self._k.shape[2] > self.size:
            self._k, self._v = self.k.clone(), self.v.clone()

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Add the next columns. Tensors that autograd needs are not written to."""
        if torch.is_grad_enabled() and (k.requires_grad or self._k.requires_grad):
            self._k, self._v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
            self.size = self._k.shape[2]
            return
        end = self.size + k.shape[2]
        if end > self._k.shape[2]:
            room = end + max(GROWTH, end // 16)
            self.reserve(room if self.max_size is None else max(end, min(room, self.max_size)))
        elif not torch.compiler.is_compiling() and (
            self._k.is_inference() and not torch.is_inference_mode_enabled()
        ):  # tensors created in inference_mode() cannot be written to outside of it
            self._k, self._v = self._k.clone(), self._v.clone()
        self._k[:, :, self.size : end] = k
        self._v[:, :, self.size : end] = v
        self.size = end

    def crop(self, count: int) -> bool:
        """Remove the newest ``count`` columns; False if they are among the compressed ones."""
        if count > self.size - self.mixed:
            return False
        self.size -= count
        return True

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Replace column i by ``table[i]``, whose last entry is the next token's column.

        The table ascends, and consecutive columns that are all stored stay consecutive.
        """
        if self.columns_of_mixed is not None:
            self.columns_of_mixed = table[self.columns_of_mixed.long()].to(torch.int32)
        self.first = int(table[self.first])

    def turn(self, rule: Turning, latents: bool = False) -> None:
        """Replace the keys by ``rule`` of keys and columns; beside latents the rotary keys."""
        if latents:
            self._v = self._v.clone()
            self._v[:, :, : self.size] = rule(self.v, self.columns)
            return
        self._k = self._k.clone()
        self._k[:, :, : self.size] = rule(self.k, self.columns)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Select rows of the batch, in this order, repeats allowed."""
        self._k, self._v = self._k.index_select(0, rows), self._v.index_select(0, rows)
        if self.columns_of_mixed is not None:
            self.columns_of_mixed = self.columns_of_mixed.index_select(0, rows)

    def fork(self) -> DensePairs:
        """Return an independent copy, without spare room."""
        other = DensePairs(self.k.clone(), self.v.clone(), self.columns_of_mixed, self.first)
        other.max_size = self.max_size
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> DensePairs:
        """Copy with spare room, and without the autograd graph, which cannot be copied."""
        other = copy(self)
        other._k, other._v = self._k.detach().clone(), self._v.detach().clone()
        return other


class ExpandedPairs(DensePairs):
    """Pairs of every head, computed from stored latents for one pass.

    ``columns`` are those of the latents, of one head; None if slot i is column i.
    """

    def __init__(
        self,
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n e"],
        columns: Int[Tensor, "b 1 n"] | None,
    ):
        self._k, self._v, self._columns = k, v, columns
        self.compressed, self.size = columns is not None, k.shape[2]

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot; expanded over heads."""
        if self._columns is None:
            return torch.arange(self.size, device=self._k.device).expand(*self._k.shape[:3])
        return self._columns.expand(*self._k.shape[:3])


def listed(
    stored: Padded | None,
    k: Float[Tensor, "b h m d"],
    v: Float[Tensor, "b h m e"],
    columns: Int[Tensor, "b h m"],
    first: int,
) -> DensePairs:
    """Append new pairs with ``columns``, -1 where there is none, to the ``stored`` ones, if any.

    Heads with fewer pairs than others get empty slots in front. ``first`` is the next token's
    column. Pairs stored in another form become dense ones until the prompt has been read.
    """
    if stored is None:
        return DensePairs(k, v, columns, first)
    k, v = torch.cat([stored.k, k], dim=2), torch.cat([stored.v, v], dim=2)
    columns = torch.cat([stored.columns.to(columns), columns], dim=2)
    real = columns >= 0
    longest = max(1, int(real.sum(-1).max()))
    if longest < columns.shape[2]:
        order = real.long().argsort(dim=2, stable=True)[:, :, -longest:]
        columns = columns.gather(2, order)
        k, v = (t.gather(2, order[..., None].expand(-1, -1, -1, t.shape[3])) for t in (k, v))
    return DensePairs(k, v, columns, first)


def _enlarged(old: Tensor, size: int, room: int) -> Tensor:
    new = old.new_empty(*old.shape[:2], room, old.shape[3])
    new[:, :, :size] = old[:, :, :size]
    return new
