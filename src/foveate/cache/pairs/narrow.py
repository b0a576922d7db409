"""Pairs whose keys are stored without the channels that are zero."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.pairs.dense import DensePairs, Padded
from foveate.cache.pairs.pairs import BodyAndRest, Exact
from foveate.cache.pairs.ragged import RaggedPairs, only, store


class NarrowPairs(BodyAndRest[Exact]):
    """An immutable ``body`` whose keys have only some ``channels``, and later pairs (``rest``).

    Keys of the rest have all channels. Channels that are not stored are zero.
    """

    body: Exact

    def __init__(self, body: Exact, channels: Int[Tensor, "b h c"], rest: Exact):
        self.body, self.channels, self.rest = body, channels, rest

    @classmethod
    def of(cls, pairs: Exact, residual: int) -> NarrowPairs | Exact:
        """Return the pairs without channels that are zero in all but each head's ``residual`` last.

        Every head loses the same number of channels. Returns ``pairs`` if that number is 0.
        """
        k, v, columns = pairs.padded()
        slots, n, d = columns >= 0, k.shape[2], k.shape[3]
        early = slots & (torch.arange(n, device=k.device) < n - residual)
        used = ((k != 0) & early[..., None]).any(2)
        width = int(used.sum(-1).max())
        if width == d or not bool(early.any()):
            return pairs
        first = used.int().argsort(dim=-1, descending=True, stable=True)[..., :width]
        channels = first.sort(dim=-1).values
        narrow = k.gather(3, channels[:, :, None].expand(-1, -1, n, -1))
        body = store(narrow, v, columns, early, pairs.next_column)
        return cls(body, channels.to(torch.int16), only(pairs, slots & ~early))

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors."""
        return self.body.nbytes + self.channels.nbytes + self.rest.nbytes

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot, right-aligned, -1 in the empty slots in front."""
        return self.opened().columns

    def opened(self) -> Exact:
        """Return all pairs with all channels: a temporary copy."""
        early, body = self.body.padded(), self.rest.padded()
        parts = zip((self._widened(early.k, body.k), early.v, early.columns), body, strict=True)
        k, v, columns = (torch.cat(both, dim=2) for both in parts)
        end = self.rest.next_column
        if isinstance(self.body, DensePairs) and isinstance(self.rest, DensePairs):
            return DensePairs(k, v, columns, end)
        return store(k, v, columns, columns >= 0, end)

    def _widened(
        self, k: Float[Tensor, "b h n c"], like: Float[Tensor, "b h m d"]
    ) -> Float[Tensor, "b h n d"]:
        index = self.channels.long()[:, :, None].expand_as(k)
        return k.new_zeros(*k.shape[:3], like.shape[3]).scatter(3, index, k)

    def padded(self) -> Padded:
        """Return all slots, padded to the longest head: a temporary copy."""
        return self.opened().padded()

    def bound(self, more: int) -> None:
        """Limit the room to ``more`` columns beyond those stored."""
        self.rest.bound(more)

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Replace column i by ``table[i]``, whose last entry is the next token's column."""
        self.body.renumber(table)
        self.rest.renumber(table)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Select rows of the batch, in this order, repeats allowed."""
        self.channels = self.channels.index_select(0, rows)
        self.body.take_rows(rows)
        self.rest.take_rows(rows)

    def fork(self) -> NarrowPairs:
        """Return an independent copy."""
        return NarrowPairs(self.body.fork(), self.channels, self.rest.fork())

    def tensors(self) -> dict[str, Tensor]:
        """Return every stored tensor by name, without spare room.

        The body is flat, head after head.
        """
        body, counts = self.body, self.body.counts
        if isinstance(body, RaggedPairs):
            k, v, columns = body.flat_k, body.flat_v, body.flat_columns
        else:
            k, v, columns = (t.flatten(0, 2) for t in body.padded())
        thin = {"k": k, "v": v, "columns": columns, "counts": counts, "channels": self.channels}
        return self.rest.tensors() | {f"thin.{name}": t for name, t in thin.items()}
