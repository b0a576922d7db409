"""Pairs whose keys are held without the channels that are zero."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.pairs.dense import DensePairs, Padded
from foveate.cache.pairs.pairs import BodyAndRest, Exact
from foveate.cache.pairs.ragged import RaggedPairs, only, store


class NarrowPairs(BodyAndRest[Exact]):
    """A ``body`` whose keys have some ``channels`` only, which never changes, and pairs with all
    channels that came later (``rest``). The channels that are not held are zero.
    """

    body: Exact

    def __init__(self, body: Exact, channels: Int[Tensor, "b h c"], rest: Exact):
        self.body, self.channels, self.rest = body, channels, rest

    @classmethod
    def of(cls, pairs: Exact, residual: int) -> NarrowPairs | Exact:
        """The pairs without the channels that are zero in all but the last ``residual`` of a head:
        as many for every head. The pairs themselves where there are none.
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
        """Bytes of every tensor held."""
        return self.body.nbytes + self.channels.nbytes + self.rest.nbytes

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot, right-aligned, -1 in the empty slots in front."""
        return self.opened().columns

    def opened(self) -> Exact:
        """All with all channels: a transient copy."""
        early, body = self.body.padded(), self.rest.padded()
        parts = zip((self._wide(early.k, body.k), early.v, early.columns), body, strict=True)
        k, v, columns = (torch.cat(both, dim=2) for both in parts)
        end = self.rest.next_column
        if isinstance(self.body, DensePairs) and isinstance(self.rest, DensePairs):
            return DensePairs(k, v, columns, end)
        return store(k, v, columns, columns >= 0, end)

    def _wide(
        self, k: Float[Tensor, "b h n c"], like: Float[Tensor, "b h m d"]
    ) -> Float[Tensor, "b h n d"]:
        index = self.channels.long()[:, :, None].expand_as(k)
        return k.new_zeros(*k.shape[:3], like.shape[3]).scatter(3, index, k)

    def padded(self) -> Padded:
        """All slots, padded to the longest head: a transient copy."""
        return self.opened().padded()

    def bound(self, more: int) -> None:
        """From now on there is room for ``more`` columns beyond those held, and for no others."""
        self.rest.bound(more)

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Column i becomes ``table[i]``; the last one is of the next token."""
        self.body.renumber(table)
        self.rest.renumber(table)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """The batch becomes these rows of it, in this order, repeats allowed."""
        self.channels = self.channels.index_select(0, rows)
        self.body.take_rows(rows)
        self.rest.take_rows(rows)

    def fork(self) -> NarrowPairs:
        """An independent copy."""
        return NarrowPairs(self.body.fork(), self.channels, self.rest.fork())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor held, by name, without spare room; the body flat, head after head."""
        body, counts = self.body, self.body.counts
        if isinstance(body, RaggedPairs):
            k, v, columns = body.flat_k, body.flat_v, body.flat_columns
        else:
            k, v, columns = (t.flatten(0, 2) for t in body.padded())
        thin = {"k": k, "v": v, "columns": columns, "counts": counts, "channels": self.channels}
        return self.rest.tensors() | {f"thin.{name}": t for name, t in thin.items()}
