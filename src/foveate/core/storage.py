"""Kept pairs, stored for real.

:class:`DensePairs` when every head keeps the same number, :class:`RaggedPairs` otherwise: flat,
head after head, never padded to the longest. Both grow at the end while decoding, by copying rarely
(growth is a sixteenth, at least ``GROWTH`` tokens), and both know the original column of each slot.
A column is a token's index in the batch's padded input, counted from the start of the conversation.
"""

from __future__ import annotations

from copy import copy

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.pairs import Padded
from foveate.ops.compaction import compaction
from foveate.ops.heads import starts_of

GROWTH = 32


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
        self.size = k.shape[2]

    @classmethod
    def empty(
        cls, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], room: int
    ) -> DensePairs:
        """No pairs yet, and room for ``room`` slots of the kind of ``k`` and ``v``."""
        k, v = (t.new_empty(*t.shape[:2], room, t.shape[3]) for t in (k, v))
        pairs = cls(k, v)
        pairs.size = 0
        return pairs

    @property
    def k(self) -> Float[Tensor, "b h n d"]:
        """Keys of all slots, not a copy."""
        return _used(self._k, self.size)

    @property
    def v(self) -> Float[Tensor, "b h n e"]:
        """Values of all slots, not a copy."""
        return _used(self._v, self.size)

    @property
    def mixed(self) -> int:
        """Slots whose columns are listed one by one."""
        return 0 if self.columns_of_mixed is None else self.columns_of_mixed.shape[2]

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs held per row and KV head."""
        return torch.full(self._k.shape[:2], self.size, device=self._k.device)

    @property
    def longest(self) -> int:
        """The most pairs that one head holds."""
        return self.size

    @property
    def compressed(self) -> bool:
        """False while slot i is column i."""
        return self.first != 0 or self.mixed != 0

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held, spare room included."""
        listed = 0 if self.columns_of_mixed is None else self.columns_of_mixed.nbytes
        return self._k.nbytes + self._v.nbytes + listed

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot."""
        late = self.size - self.mixed
        tail = torch.arange(self.first, self.first + late, device=self._k.device)
        tail = tail.expand(*self._k.shape[:2], late)
        if self.columns_of_mixed is None:
            return tail
        return torch.cat([self.columns_of_mixed.long(), tail], dim=2)

    def opened(self) -> DensePairs:
        """Themselves."""
        return self

    def padded(self) -> Padded:
        """All slots; nothing is copied."""
        return Padded(self.k, self.v, self.columns)

    def only(self, kept: Bool[Tensor, "b h n"]) -> DensePairs | RaggedPairs:
        """A copy that holds the kept slots."""
        return store(*self.padded(), kept, self.first + self.size - self.mixed)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor held, by name, without spare room."""
        listed = {} if self.columns_of_mixed is None else {"columns": self.columns_of_mixed}
        return {"k": self.k, "v": self.v} | listed

    def reserve(self, room: int) -> None:
        """Makes room for ``room`` slots in all, copying once if need be."""
        if room <= self._k.shape[2]:
            return
        self._k, self._v = (_enlarged(t, self.size, room) for t in (self._k, self._v))

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Adds the next columns. What a graph holds is not written to."""
        if torch.is_grad_enabled() and (k.requires_grad or self._k.requires_grad):
            self._k, self._v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
            self.size = self._k.shape[2]
            return
        end = self.size + k.shape[2]
        if end > self._k.shape[2]:
            self.reserve(end + max(GROWTH, end // 16))
        elif not torch.compiler.is_compiling() and self._stale():
            # what inference_mode() made cannot be written to outside of it
            self._k, self._v = self._k.clone(), self._v.clone()
        self._k[:, :, self.size : end] = k
        self._v[:, :, self.size : end] = v
        self.size = end

    def _stale(self) -> bool:
        return self._k.is_inference() and not torch.is_inference_mode_enabled()

    def crop(self, count: int) -> bool:
        """Takes back the newest ``count`` columns; False if they are among the compressed ones."""
        if count > self.size - self.mixed:
            return False
        self.size -= count
        return True

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """The batch becomes these rows of it, in this order, repeats allowed."""
        self._k, self._v = self._k.index_select(0, rows), self._v.index_select(0, rows)
        if self.columns_of_mixed is not None:
            self.columns_of_mixed = self.columns_of_mixed.index_select(0, rows)

    def fork(self) -> DensePairs:
        """An independent copy, without spare room."""
        return DensePairs(self.k.clone(), self.v.clone(), self.columns_of_mixed, self.first)

    def __deepcopy__(self, memo: dict[int, object]) -> DensePairs:
        """With the spare room, and without the graph, which cannot be copied."""
        other = copy(self)
        other._k, other._v = self._k.detach().clone(), self._v.detach().clone()
        return other


class RaggedPairs:
    """Pairs of heads that keep different numbers: a flat body that never changes, and a dense tail.

    The body lists the pairs of row 0's head 0, then row 0's head 1, and so on. The tail holds what
    was appended later, the same number for every head.
    """

    def __init__(
        self,
        k: Float[Tensor, "f d"],
        v: Float[Tensor, "f e"],
        columns: Int[Tensor, "f"],
        body_counts: Int[Tensor, "b h"],
        first: int,
    ):
        self.flat_k, self.flat_v, self.flat_columns = k, v, columns.to(torch.int32)
        self._hold(body_counts)
        shape = (*body_counts.shape, 0)
        self.tail = DensePairs(k.new_empty(*shape, k.shape[1]), v.new_empty(*shape, v.shape[1]),
                               first=first)  # fmt: skip

    def _hold(self, counts: Int[Tensor, "b h"]) -> None:
        """Where each head's body starts, on the device and, for what runs on the host, here."""
        self.heads: tuple[int, ...] = tuple(counts.shape)
        self.starts = starts_of(counts)
        self.lengths: list[int] = counts.flatten().tolist()
        self.longest_body = max(self.lengths)

    @property
    def body_counts(self) -> Int[Tensor, "b h"]:
        """Pairs of each head's body."""
        return self.starts.diff().view(self.heads)

    @property
    def parts(self) -> tuple[Tensor, Tensor, list[int], Tensor, Tensor]:
        """The body's keys, values and lengths, and the tail's keys and values."""
        return self.flat_k, self.flat_v, self.lengths, self.tail.k, self.tail.v

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs held per row and KV head."""
        return self.body_counts + self.tail.size

    @property
    def longest(self) -> int:
        """The most pairs that one head holds."""
        return self.longest_body + self.tail.size

    @property
    def compressed(self) -> bool:
        """Always True: only kept pairs are stored like this."""
        return True

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held, spare room included."""
        body = (self.flat_k, self.flat_v, self.flat_columns, self.starts)
        return sum(t.nbytes for t in body) + self.tail.nbytes

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot, right-aligned, -1 in the empty slots in front."""
        index, empty = self._index()
        body = self.flat_columns[index].long().masked_fill(empty, -1)
        return torch.cat([body, self.tail.columns], dim=2)

    @property
    def first(self) -> int:
        """The column of the first pair that was appended."""
        return self.tail.first

    def opened(self) -> RaggedPairs:
        """Themselves."""
        return self

    def only(self, kept: Bool[Tensor, "b h n"]) -> DensePairs | RaggedPairs:
        """A copy that holds the kept slots."""
        tail = self.tail
        return store(*self.padded(), kept, tail.first + tail.size - tail.mixed)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor held, by name, without spare room."""
        return {"flat_k": self.flat_k, "flat_v": self.flat_v, "columns": self.flat_columns,
                "counts": self.body_counts, "k": self.tail.k, "v": self.tail.v}  # fmt: skip

    def padded(self) -> Padded:
        """All slots, padded to the longest head: a transient copy."""
        index, empty = self._index()
        body = self.flat_columns[index].long().masked_fill(empty, -1)
        return Padded(
            torch.cat([self.flat_k[index], self.tail.k], dim=2),
            torch.cat([self.flat_v[index], self.tail.v], dim=2),
            torch.cat([body, self.tail.columns], dim=2),
        )

    def _index(self) -> tuple[Int[Tensor, "b h s"], Bool[Tensor, "b h s"]]:
        """Where each right-aligned body slot stands in the flat tensors, and which are empty."""
        ends = self.starts[1:].view(self.heads)
        back = torch.arange(-self.longest_body, 0, device=ends.device)
        empty = -back > self.body_counts[..., None]
        return (ends[..., None] + back).clamp_min(0), empty

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Adds the next columns."""
        self.tail.append(k, v)

    def crop(self, count: int) -> bool:
        """Takes back the newest ``count`` columns; False if they are among the compressed ones."""
        return self.tail.crop(count)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """The batch becomes these rows of it, in this order, repeats allowed."""
        heads, starts = self.heads[1], self.starts.tolist()
        spans = [(starts[r * heads], starts[(r + 1) * heads]) for r in rows.tolist()]
        for name in ("flat_k", "flat_v", "flat_columns"):
            flat = getattr(self, name)
            setattr(self, name, torch.cat([flat[start:end] for start, end in spans]))
        self._hold(self.body_counts.index_select(0, rows))
        self.tail.take_rows(rows)

    def fork(self) -> RaggedPairs:
        """An independent copy: it shares the body, which never changes, and copies the tail."""
        other = RaggedPairs(
            self.flat_k, self.flat_v, self.flat_columns, self.body_counts, self.tail.first
        )
        other.tail = self.tail.fork()
        return other


def store(
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    columns: Int[Tensor, "b h n"],
    kept: Bool[Tensor, "b h n"],
    first: int,
    counts: Int[Tensor, "b h"] | None = None,
) -> DensePairs | RaggedPairs:
    """Stores the kept slots: dense if every head keeps the same number, ragged otherwise.

    ``first`` is the column that the next token will have; ``counts`` are those of ``kept``.
    """
    counts = kept.sum(-1) if counts is None else counts
    flat = compaction(k, v, columns, kept, counts)
    if len(set(lengths := counts.flatten().tolist())) > 1:
        return RaggedPairs(*flat, counts, first)
    keys, values, places = (t.view(*counts.shape, lengths[0], *t.shape[1:]) for t in flat)
    return DensePairs(keys, values, places, first)


def _used(t: Tensor, size: int) -> Tensor:
    """The slots in use; the tensor itself where all are, which takes no call into torch."""
    if not torch.compiler.is_compiling() and size == t.shape[2]:
        return t
    return t[:, :, :size]


def _enlarged(old: Tensor, size: int, room: int) -> Tensor:
    new = old.new_empty(*old.shape[:2], room, old.shape[3])
    new[:, :, :size] = old[:, :, :size]
    return new
