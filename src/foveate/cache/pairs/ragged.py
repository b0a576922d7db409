"""Pairs of heads that hold different numbers, flat, and never padded to the longest."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.pairs.dense import DensePairs, Padded, Turning
from foveate.ops.compaction import compaction, starts_of


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
        # of 32 bits: columns are below 2^31, and half the bytes count in every budget in bytes
        self.flat_k, self.flat_v, self.flat_columns = k, v, columns.to(torch.int32)
        self.compressed = True  # only kept pairs are stored like this
        self._hold(body_counts)
        shape = (*body_counts.shape, 0)
        self.tail = DensePairs(
            k.new_empty(*shape, k.shape[1]), v.new_empty(*shape, v.shape[1]), first=first
        )

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

    @property
    def next_column(self) -> int:
        """The column that the next token will have."""
        return self.tail.next_column

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor held, by name, without spare room."""
        return {
            "flat_k": self.flat_k,
            "flat_v": self.flat_v,
            "columns": self.flat_columns,
            "counts": self.body_counts,
            **self.tail.tensors(),
        }

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
        # the first head's empty slots would lead to before the flat tensors; they are masked later
        return (ends[..., None] + back).clamp_min(0), empty

    def bound(self, more: int) -> None:
        """From now on there is room for ``more`` columns beyond those held, and for no others."""
        self.tail.bound(more)

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Adds the next columns."""
        self.tail.append(k, v)

    def crop(self, count: int) -> bool:
        """Takes back the newest ``count`` columns; False if they are among the compressed ones."""
        return self.tail.crop(count)

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Column i becomes ``table[i]``; the last one is of the next token."""
        self.flat_columns = table[self.flat_columns.long()].to(torch.int32)
        self.tail.renumber(table)

    def turn(self, rule: Turning) -> None:
        """Keys become what the rule says of them and of their columns."""
        self.flat_k = rule(self.flat_k, self.flat_columns.long())
        self.tail.turn(rule)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """The batch becomes these rows of it, in this order, repeats allowed."""
        # all heads of a row stand together, so a row is one slice
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
    # the one question to the device: which kind of storage it is
    if len(set(lengths := counts.flatten().tolist())) > 1:
        return RaggedPairs(*flat, counts, first)
    shape = (*counts.shape, lengths[0])
    keys, values, places = flat
    return DensePairs(
        keys.view(*shape, keys.shape[1]),
        values.view(*shape, values.shape[1]),
        places.view(shape),
        first,
    )


def only(pairs: DensePairs | RaggedPairs, kept: Bool[Tensor, "b h n"]) -> DensePairs | RaggedPairs:
    """A copy that holds the kept slots."""
    return store(*pairs.padded(), kept, pairs.next_column)


def exact(tensors: Mapping[str, Tensor], first: int) -> DensePairs | RaggedPairs:
    """The pairs that have these ``tensors()``, and maybe others; ``first`` is the first column that
    is not listed.
    """
    if "flat_k" not in tensors:
        return DensePairs(tensors["k"], tensors["v"], tensors.get("columns"), first)
    k, v, columns, counts = (tensors[name] for name in ("flat_k", "flat_v", "columns", "counts"))
    ragged = RaggedPairs(k, v, columns, counts, first)
    # the body holds what was kept; what came after it was saved under the names of the dense tail
    if tensors["k"].shape[2]:
        ragged.append(tensors["k"], tensors["v"])
    return ragged
