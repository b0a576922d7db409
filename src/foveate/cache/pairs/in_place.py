"""Pairs in which each new one replaces another, in the same slot.

So slots have no order. Attention does not need one; other callers get an ordered copy.
"""

from __future__ import annotations

from copy import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch._compile import _disable_dynamo

from foveate.cache.pairs.dense import GROWTH, DensePairs, Padded


class RewrittenPairs:
    """Pairs [b, h, n, d] of heads that all have the same number, with spare room at the end.

    Each slot's column is listed, -1 in a free slot. At most one slot of each head is free, and the
    next token takes it. ``free`` is an int if it is the same slot in all heads; then all heads have
    their tokens in the same ``order``.
    """

    def __init__(self, pairs: DensePairs):
        """Take over the tensors, including room: ``pairs`` must not be used any more."""
        self._k, self._v = (t.detach() for t in pairs.with_room)
        self.size, self._next = pairs.size, pairs.next_column
        self._columns = _padded_to(pairs.columns.to(torch.int32), self._k.shape[2])
        self.free: Int[Tensor, "b h 1"] | int | None = None
        self.order: list[int] | None = list(range(pairs.size))

    @property
    def k(self) -> Float[Tensor, "b h n d"]:
        """Keys of all slots, not a copy; a free slot still has its old key."""
        return self._k[:, :, : self.size]

    @property
    def v(self) -> Float[Tensor, "b h n e"]:
        """Values of all slots, not a copy; a free slot still has its old value."""
        return self._v[:, :, : self.size]

    @property
    def unordered(self) -> Int[Tensor, "b h n"]:
        """The column of each slot, not a copy."""
        return self._columns[:, :, : self.size]

    @property
    def longest(self) -> int:
        """Number of pairs of each head."""
        return self.size - (self.free is not None)

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs stored per row and KV head."""
        return self._k.new_full(self._k.shape[:2], self.longest, dtype=torch.long)

    @property
    def compressed(self) -> bool:
        """True: some pair was removed."""
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors, spare room included."""
        listed = self.free.nbytes if isinstance(self.free, Tensor) else 0
        return self._k.nbytes + self._v.nbytes + self._columns.nbytes + listed

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each pair, in order."""
        return self._in_order(self.unordered).long()

    @property
    def first(self) -> int:
        """The column of the next token: all others are listed."""
        return self._next

    next_column = first

    def opened(self) -> DensePairs:
        """Return the pairs in order: a temporary copy."""
        k, v, columns = (self._in_order(t) for t in (self.k, self.v, self.unordered))
        return DensePairs(k, v, columns, self._next)

    def padded(self) -> Padded:
        """Return all pairs in order: a temporary copy."""
        return self.opened().padded()

    def of_slots(self, state: Float[Tensor, "b h n"]) -> Float[Tensor, "b h s"]:
        """Reorder one number per slot to the order of the pairs."""
        return self._in_order(state)

    def _in_order(self, t: Tensor) -> Tensor:
        if self.order is not None:
            return t[:, :, self.order]
        slots = self.unordered.argsort(dim=-1)[..., self.size - self.longest :]
        if t.dim() == 4:
            slots = slots[..., None].expand(*slots.shape, t.shape[3])
        return t.gather(2, slots)

    # Replacing pairs

    def vacate(self, slots: Int[Tensor, "b h 1"]) -> None:
        """Remove the pairs in these slots."""
        self._columns.scatter_(2, slots, -1)
        self.free, self.order = slots, None

    def vacate_nth(self, index: int) -> None:
        """Remove the pair that is ``index``-th in every head.

        Raises:
            IndexError: heads have different orders, because :meth:`vacate` was called before.
        """
        if self.order is None:
            raise IndexError("these heads hold their tokens in orders of their own")
        self.free = self.order.pop(index)
        self._columns[:, :, self.free] = -1

    # torch.compiler.disable would import the compiler: a second at every import of Foveate
    @_disable_dynamo
    def append(self, k: Float[Tensor, "b h 1 d"], v: Float[Tensor, "b h 1 e"]) -> None:
        """Add the next column, in the free slot or at the end."""
        self._leave_inference_mode()
        free = self.free
        if isinstance(free, Tensor):
            self._k.scatter_(2, free[..., None].expand_as(k), k.detach())
            self._v.scatter_(2, free[..., None].expand_as(v), v.detach())
            self._columns.scatter_(2, free, self._next)
        else:
            slot = self._next_slot() if free is None else free
            self._k[:, :, slot : slot + 1], self._v[:, :, slot : slot + 1] = k.detach(), v.detach()
            self._columns[:, :, slot] = self._next
            if self.order is not None:
                self.order.append(slot)
        self.free, self._next = None, self._next + 1

    def _next_slot(self) -> int:
        """Return the next slot at the end, growing the room if necessary."""
        slot, self.size = self.size, self.size + 1
        if self.size > self._k.shape[2]:
            room = self.size + max(GROWTH, self.size // 16)
            used = (self._k[:, :, :slot], self._v[:, :, :slot], self._columns[:, :, :slot])
            self._k, self._v, self._columns = (_padded_to(t, room) for t in used)
        return slot

    def _leave_inference_mode(self) -> None:
        """Copy tensors created in inference_mode(), which cannot be written to outside of it."""
        if torch.is_inference_mode_enabled():
            return
        for name in ("_k", "_v", "_columns"):
            if getattr(self, name).is_inference():
                setattr(self, name, getattr(self, name).clone())

    # The rest of the protocol

    def crop(self, count: int) -> bool:
        """Return False: the pairs that the newest columns replaced are gone."""
        return False

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Select rows of the batch, in this order, repeats allowed."""
        for name in ("_k", "_v", "_columns"):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        if isinstance(self.free, Tensor):
            self.free = self.free.index_select(0, rows)

    def fork(self) -> RewrittenPairs:
        """Return an independent copy."""
        other = copy(self)
        other._k, other._v, other._columns = (t.clone() for t in (self._k, self._v, self._columns))
        other.order = None if self.order is None else self.order.copy()
        return other

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the same pairs in order."""
        return self.opened().tensors()


def rewritten(pairs: DensePairs | RewrittenPairs) -> RewrittenPairs:
    """Return the pairs as rewritten ones, which take over the tensors."""
    return RewrittenPairs(pairs) if isinstance(pairs, DensePairs) else pairs


def _padded_to(t: Tensor, room: int) -> Tensor:
    """Copy a tensor to ``room`` slots, the last of which are not initialised."""
    new = t.new_empty(*t.shape[:2], room, *t.shape[3:])
    new[:, :, : t.shape[2]] = t
    return new
