"""Pairs of heads that all hold the same number, with room to grow.

Growing copies rarely: by a sixteenth, at least ``GROWTH`` tokens.
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
"""What keys become, given the column of each."""


class Padded(NamedTuple):
    """A transient view of all slots, right-aligned; ``columns`` is -1 in the empty ones."""

    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    columns: Int[Tensor, "b h n"]


class DensePairs:
    """Pairs [b, h, n, d] with spare room at the end.

    Slots before ``mixed`` hold the columns listed in ``columns``; later slots hold consecutive
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
        self.most: int | None = None  # slots that there may be room for

    @classmethod
    def empty(
        cls, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], room: int
    ) -> DensePairs:
        """No pairs yet, and room for ``room`` slots of the kind of ``k`` and ``v``."""
        pairs = cls(
            k.new_empty(*k.shape[:2], room, k.shape[3]), v.new_empty(*v.shape[:2], room, v.shape[3])
        )
        pairs.size = 0
        return pairs

    @property
    def k(self) -> Float[Tensor, "b h n d"]:
        """Keys of all slots, not a copy: where all are in use, without a call into torch."""
        k = self._k
        whole = self.size == k.shape[2] and not torch.compiler.is_compiling()
        return k if whole else k[:, :, : self.size]

    @property
    def v(self) -> Float[Tensor, "b h n e"]:
        """Values of all slots, likewise."""
        v = self._v
        whole = self.size == v.shape[2] and not torch.compiler.is_compiling()
        return v if whole else v[:, :, : self.size]

    def both(self) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        """``k`` and ``v``, in one call: it is made at every layer."""
        k, v, size = self._k, self._v, self.size
        if size == k.shape[2] and not torch.compiler.is_compiling():
            return k, v
        return k[:, :, :size], v[:, :, :size]

    @property
    def with_room(self) -> tuple[Float[Tensor, "b h r d"], Float[Tensor, "b h r e"]]:
        """Keys and values with the room at the end."""
        return self._k, self._v

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs held per row and KV head."""
        return self._k.new_full(self._k.shape[:2], self.size, dtype=torch.long)

    @property
    def longest(self) -> int:
        """The most pairs that one head holds."""
        return self.size

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held, spare room included."""
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
        """Themselves."""
        return self

    def padded(self) -> Padded:
        """All slots; nothing is copied."""
        return Padded(self.k, self.v, self.columns)

    @property
    def next_column(self) -> int:
        """The column that the next token will have."""
        return self.first + self.size - self.mixed

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor held, by name, without spare room."""
        listed = {} if self.columns_of_mixed is None else {"columns": self.columns_of_mixed}
        return {"k": self.k, "v": self.v} | listed

    def reserve(self, room: int) -> None:
        """Makes room for ``room`` slots in all, copying once if need be."""
        if room <= self._k.shape[2]:
            return
        self._k, self._v = (_enlarged(t, self.size, room) for t in (self._k, self._v))

    def bound(self, more: int) -> None:
        """From now on there is room for ``more`` slots beyond those in use, and for no others."""
        self.most = self.size + more
        if self._k.shape[2] > self.most:
            self._k, self._v = (_enlarged(t, self.size, self.most) for t in (self._k, self._v))

    def cut(self) -> None:
        """Gives spare room back; there will be some again when more pairs come."""
        if self._k.shape[2] > self.size:
            self._k, self._v = self.k.clone(), self.v.clone()

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Adds the next columns. What a graph holds is not written to."""
        if torch.is_grad_enabled() and (k.requires_grad or self._k.requires_grad):
            self._k, self._v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
            self.size = self._k.shape[2]
            return
        end = self.size + k.shape[2]
        if end > self._k.shape[2]:
            room = end + max(GROWTH, end // 16)
            self.reserve(room if self.most is None else max(end, min(room, self.most)))
        elif not torch.compiler.is_compiling() and (
            self._k.is_inference() and not torch.is_inference_mode_enabled()
        ):  # what inference_mode() made cannot be written to outside of it
            self._k, self._v = self._k.clone(), self._v.clone()
        self._k[:, :, self.size : end] = k
        self._v[:, :, self.size : end] = v
        self.size = end

    def crop(self, count: int) -> bool:
        """Takes back the newest ``count`` columns; False if they are among the compressed ones."""
        if count > self.size - self.mixed:
            return False
        self.size -= count
        return True

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Column i becomes ``table[i]``: as many as there are, in the same order, without gaps
        where all are held that follow each other. The last is of the next token.
        """
        if self.columns_of_mixed is not None:
            self.columns_of_mixed = table[self.columns_of_mixed.long()].to(torch.int32)
        self.first = int(table[self.first])

    def turn(self, rule: Turning) -> None:
        """Keys become what the rule says of them and of their columns."""
        self._k = self._k.clone()
        self._k[:, :, : self.size] = rule(self.k, self.columns)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """The batch becomes these rows of it, in this order, repeats allowed."""
        self._k, self._v = self._k.index_select(0, rows), self._v.index_select(0, rows)
        if self.columns_of_mixed is not None:
            self.columns_of_mixed = self.columns_of_mixed.index_select(0, rows)

    def fork(self) -> DensePairs:
        """An independent copy, without spare room."""
        other = DensePairs(self.k.clone(), self.v.clone(), self.columns_of_mixed, self.first)
        other.most = self.most
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> DensePairs:
        """With the spare room, and without the graph, which cannot be copied."""
        other = copy(self)
        other._k, other._v = self._k.detach().clone(), self._v.detach().clone()
        return other


def listed(
    held: Padded | None,
    k: Float[Tensor, "b h m d"],
    v: Float[Tensor, "b h m e"],
    columns: Int[Tensor, "b h m"],
    first: int,
) -> DensePairs:
    """The pairs ``held`` (None: none) and new ones of these ``columns``, -1 where there is none;
    heads that have fewer than others have empty slots in front. ``first`` is the column of the next
    token. Other pairs than dense ones are held opened: until the prompt has been read.
    """
    if held is None:
        return DensePairs(k, v, columns, first)
    k, v = torch.cat([held.k, k], dim=2), torch.cat([held.v, v], dim=2)
    columns = torch.cat([held.columns.to(columns), columns], dim=2)
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
