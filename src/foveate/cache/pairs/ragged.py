"""Pairs of heads with different numbers, flat, and never padded to the longest."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.pairs.dense import DensePairs, Padded, Turning
from foveate.ops.compaction import compaction, starts_of


class RaggedPairs:
    """Pairs of heads with different numbers: an immutable flat body and a dense tail.

    The body lists the pairs of row 0's head 0, then row 0's head 1, and so on. The tail has the
    pairs that were appended later, the same number for every head.
    """

    def __init__(
        self,
        k: Float[Tensor, "f d"],
        v: Float[Tensor, "f e"],
        columns: Int[Tensor, "f"],
        body_counts: Int[Tensor, "b h"],
        first: int,
    ):
        # int32: columns are below 2^31, and their bytes count in every budget in bytes
        self.flat_k, self.flat_v, self.flat_columns = k, v, columns.to(torch.int32)
        self.compressed = True  # only kept pairs are stored like this
        self._set_counts(body_counts)
        shape = (*body_counts.shape, 0)
        self.tail = DensePairs(
            k.new_empty(*shape, k.shape[1]), v.new_empty(*shape, v.shape[1]), first=first
        )

    def _set_counts(self, counts: Int[Tensor, "b h"]) -> None:
        """Store each head's start and length, on the device and on the host."""
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
        """Pairs stored per row and KV head."""
        return self.body_counts + self.tail.size

    @property
    def longest(self) -> int:
        """Largest number of pairs of a head."""
        return self.longest_body + self.tail.size

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors, spare room included."""
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
        """Return self: the pairs are in full precision."""
        return self

    @property
    def next_column(self) -> int:
        """The column of the next token."""
        return self.tail.next_column

    def tensors(self) -> dict[str, Tensor]:
        """Return every stored tensor by name, without spare room."""
        return {
            "flat_k": self.flat_k,
            "flat_v": self.flat_v,
            "columns": self.flat_columns,
            "counts": self.body_counts,
            **self.tail.tensors(),
        }

    def padded(self) -> Padded:
        """Return all slots, padded to the longest head: a temporary copy."""
        index, empty = self._index()
        body = self.flat_columns[index].long().masked_fill(empty, -1)
        return Padded(
            torch.cat([self.flat_k[index], self.tail.k], dim=2),
            torch.cat([self.flat_v[index], self.tail.v], dim=2),
            torch.cat([body, self.tail.columns], dim=2),
        )

    def _index(self) -> tuple[Int[Tensor, "b h s"], Bool[Tensor, "b h s"]]:
        """Return the index of each right-aligned body slot, and a mask of empty slots."""
        ends = self.starts[1:].view(self.heads)
        back = torch.arange(-self.longest_body, 0, device=ends.device)
        empty = -back > self.body_counts[..., None]
        # the first head's empty slots would have negative indices; callers mask them
        return (ends[..., None] + back).clamp_min(0), empty

    def bound(self, more: int) -> None:
        """Limit the room to ``more`` columns beyond those stored."""
        self.tail.bound(more)

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Add the next columns."""
        self.tail.append(k, v)

    def crop(self, count: int) -> bool:
        """Remove the newest ``count`` columns; False if they are among the compressed ones."""
        return self.tail.crop(count)

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Replace column i by ``table[i]``, whose last entry is the next token's column."""
        self.flat_columns = table[self.flat_columns.long()].to(torch.int32)
        self.tail.renumber(table)

    def turn(self, rule: Turning, latents: bool = False) -> None:
        """Replace the keys by ``rule`` of keys and columns; beside latents the rotary keys."""
        columns = self.flat_columns.long()
        if latents:
            self.flat_v = rule(self.flat_v, columns)
        else:
            self.flat_k = rule(self.flat_k, columns)
        self.tail.turn(rule, latents)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Select rows of the batch, in this order, repeats allowed."""
        # all heads of a row are stored together, so a row is one slice
        heads, starts = self.heads[1], self.starts.tolist()
        spans = [(starts[r * heads], starts[(r + 1) * heads]) for r in rows.tolist()]
        for name in ("flat_k", "flat_v", "flat_columns"):
            flat = getattr(self, name)
            setattr(self, name, torch.cat([flat[start:end] for start, end in spans]))
        self._set_counts(self.body_counts.index_select(0, rows))
        self.tail.take_rows(rows)

    def fork(self) -> RaggedPairs:
        """Return an independent copy, which shares the immutable body and copies the tail."""
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
    """Store the kept slots: dense if every head keeps the same number, ragged otherwise.

    ``first`` is the next token's column; ``counts`` are those of ``kept``.
    """
    counts = kept.sum(-1) if counts is None else counts
    flat = compaction(k, v, columns, kept, counts)
    # the one device sync: heads of equal length decide the kind of storage
    if len(set(lengths := counts.flatten().tolist())) > 1:
        return RaggedPairs(*flat, counts, first)
    shape = (*counts.shape, lengths[0])
    keys, values, stored_columns = flat
    return DensePairs(
        keys.view(*shape, keys.shape[1]),
        values.view(*shape, values.shape[1]),
        stored_columns.view(shape),
        first,
    )


def only(pairs: DensePairs | RaggedPairs, kept: Bool[Tensor, "b h n"]) -> DensePairs | RaggedPairs:
    """Return a copy with the kept slots only."""
    return store(*pairs.padded(), kept, pairs.next_column)


def exact(tensors: Mapping[str, Tensor], first: int) -> DensePairs | RaggedPairs:
    """Return the pairs that have these ``tensors()``; other names are ignored.

    ``first`` is the first column that is not listed.
    """
    if "flat_k" not in tensors:
        return DensePairs(tensors["k"], tensors["v"], tensors.get("columns"), first)
    k, v, columns, counts = (tensors[name] for name in ("flat_k", "flat_v", "columns", "counts"))
    ragged = RaggedPairs(k, v, columns, counts, first)
    # the body has the kept pairs; later ones are saved under the names of the dense tail
    if tensors["k"].shape[2]:
        ragged.append(tensors["k"], tensors["v"])
    return ragged
