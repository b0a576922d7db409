"""Pairs of which all but the newest are quantised.

Reasons for own code: transformers' quantised caches and the libraries beneath them need the same
length in all heads of a layer, and cannot remove tokens or reorder a batch's rows; hqq packs
numbers of different heads into one byte; torchao's public operators round the minimum to a step and
use a byte per code; optimum-quanto packs weights, symmetrically.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.pairs.body import Body, PairLayout, joined, of_rows, renumbered, selected
from foveate.cache.pairs.dense import DensePairs, Padded
from foveate.cache.pairs.pairs import BodyAndRest, Exact, Others
from foveate.cache.pairs.ragged import RaggedPairs, exact, only
from foveate.ops.ragged_decode import FlatPairs


class CodedPairs(BodyAndRest[Others]):
    """Pairs with an immutable ``body`` in codes, which ``tensors()`` prefixes with ``name``."""

    body: Body
    name: ClassVar[str]

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors: codes, scales, and pairs in full precision."""
        return sum(t.nbytes for t in self.body) + self.rest.nbytes

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Replace column i by ``table[i]``, whose last entry is the next token's column."""
        self.body = renumbered(self.body, table)
        self.rest.renumber(table)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """Select rows of the batch, in this order, repeats allowed."""
        self.body = of_rows(self.body, rows)
        self.rest.take_rows(rows)

    def fork(self) -> Any:
        """Return an independent copy: it shares the body, and copies the rest."""
        return self.but(self.rest.fork())

    def tensors(self) -> dict[str, Tensor]:
        """Return every stored tensor by name, without spare room."""
        body = {f"{self.name}.{name}": t for name, t in self.body._asdict().items()}
        return self.rest.tensors() | body

    @classmethod
    def body_in(cls, tensors: Mapping[str, Tensor]) -> Body:
        """Return the body among tensors that were read from a file."""
        return Body(**{field: tensors[f"{cls.name}.{field}"] for field in Body._fields})

    def but(self, rest: Others, body: Body | None = None) -> Any:
        """Return a copy with this rest, and with the same body or another one."""
        other = copy.copy(self)
        other.body, other.rest = self.body if body is None else body, rest
        return other


class QuantisedPairs(CodedPairs[Exact]):
    """A quantised body, and later pairs in full precision (``rest``).

    Pairs move from the rest to the body before new ones are added, once a head's rest has at least
    ``residual + group`` pairs; so the newest ones can always be removed again.
    """

    name = "body"

    def __init__(self, body: Body, rest: Exact, layout: PairLayout, residual: int):
        self.body, self.rest = body, rest
        self.layout, self.residual = layout, residual
        self._longest: tuple[Body, int] | None = None  # cached with its body, needs a sync

    @classmethod
    def restored(
        cls, tensors: Mapping[str, Tensor], first: int, layout: PairLayout, residual: int
    ) -> QuantisedPairs:
        """Rebuild the pairs from their ``tensors()``; ``first`` is the first column not listed."""
        return cls(cls.body_in(tensors), exact(tensors, first), layout, residual)

    @classmethod
    def of(cls, pairs: Exact, layout: PairLayout, residual: int) -> QuantisedPairs:
        """Quantise all but the last ``residual`` pairs of every head."""
        no_slots = torch.zeros_like(pairs.padded().columns, dtype=torch.bool)
        quantised_pairs = cls(codes_of(pairs, no_slots, layout), pairs, layout, residual)
        quantised_pairs._settle()
        return quantised_pairs

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot, right-aligned, -1 in the empty slots in front."""
        rest, slots, coded = self.rest.columns, self._slots(), self._coded()
        columns = torch.empty(len(coded), dtype=rest.dtype, device=rest.device)
        columns[coded], columns[~coded] = self.body.columns.to(rest.dtype), rest[rest >= 0]
        return torch.full_like(slots, -1, dtype=rest.dtype).masked_scatter(slots, columns)

    def _slots(self) -> Bool[Tensor, "b h n"]:
        """Return the slots with a pair as a mask, right-aligned."""
        counts, n = self.counts, self.longest
        return torch.arange(n, device=counts.device) >= n - counts[:, :, None]

    def _coded(self) -> Bool[Tensor, "m"]:
        """Return the pairs of the body as a mask over all pairs; a head's body comes first."""
        counts = self.counts.flatten()
        index = torch.cat([torch.arange(n, device=counts.device) for n in counts.tolist()])
        return index < self.body.counts.flatten().repeat_interleave(counts)

    @property
    def parts(self) -> tuple[Any, FlatPairs, Tensor, Tensor]:
        """Inputs of decoding: codes, flat pairs in full precision, and the tail's keys and values.

        Codes are in the form of the layout's ``attention``.
        """
        body, rest = self.body, self.rest
        if self._longest is None or self._longest[0] is not body:
            self._longest = body, int(body.counts.max())
        coded = self.layout.flat(body, self._longest[1])
        if isinstance(rest, RaggedPairs):
            flat = FlatPairs(rest.flat_k, rest.flat_v, rest.starts, rest.longest_body)
            return coded, flat, rest.tail.k, rest.tail.v
        no_k, no_v = (x.new_empty(0, x.shape[3]) for x in (rest.k, rest.v))
        return coded, FlatPairs(no_k, no_v, torch.zeros_like(coded.starts), 0), rest.k, rest.v

    def attend(
        self, q: Float[Tensor, "b hq 1 d"], scale: float, n: float
    ) -> Float[Tensor, "b hq 1 e"]:
        """Compute a decoding step's attention without opening the codes; ``n`` is softmax-n's."""
        return self.layout.attention(q, *self.parts, scale, n)

    def opened(self) -> DensePairs | RaggedPairs:
        """Return all pairs in full precision: a temporary copy."""
        body, rest = self.body, self.rest
        k, v = self.layout.decode(body, *(rest.tensors()[x].shape[-1] for x in "kv"))
        columns, counts = body.columns.int(), body.counts
        if isinstance(rest, DensePairs) and bool((counts == counts[0, 0]).all()):
            shape = (*counts.shape, int(counts[0, 0]))
            return DensePairs(
                torch.cat([k.view(*shape, k.shape[1]), rest.k], dim=2),
                torch.cat([v.view(*shape, v.shape[1]), rest.v], dim=2),
                torch.cat([columns.view(shape), rest.columns.int()], dim=2),
                rest.first + rest.size - rest.mixed,
            )
        tail = rest if isinstance(rest, DensePairs) else rest.tail
        if isinstance(rest, RaggedPairs):
            heads = torch.arange(counts.numel(), device=counts.device)
            spans = (counts.flatten(), rest.body_counts.flatten())
            order = torch.cat([heads.repeat_interleave(n) for n in spans]).argsort(stable=True)
            later = (rest.flat_k, rest.flat_v, rest.flat_columns)
            k, v, columns = (
                torch.cat(both)[order] for both in zip((k, v, columns), later, strict=True)
            )
            counts = counts + rest.body_counts
        ragged = RaggedPairs(k, v, columns, counts, tail.first)
        ragged.tail = tail
        return ragged

    def padded(self) -> Padded:
        """Return all slots in full precision, padded to the longest head: a temporary copy."""
        return self.opened().padded()

    def only(self, kept: Bool[Tensor, "b h n"]) -> QuantisedPairs:
        """Return a copy with the kept slots only; codes stay as they are."""
        kept_pairs, coded, rest = kept[self._slots()], self._coded(), self.rest
        slots = rest.columns >= 0
        kept_rest = torch.zeros_like(slots).masked_scatter(slots, kept_pairs[~coded])
        copied: QuantisedPairs = self.but(
            only(rest, kept_rest), selected(self.body, kept_pairs[coded])
        )
        return copied

    def append(self, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t e"]) -> None:
        """Add the next columns."""
        if self.rest.longest >= self.residual + self.layout.group:
            self._settle()
        super().append(k, v)

    def _settle(self) -> None:
        """Quantise all but the last ``residual`` pairs of every head."""
        columns = self.rest.columns
        slots, n = columns >= 0, columns.shape[2]
        old = slots & (torch.arange(n, device=columns.device) < n - self.residual)
        new = codes_of(self.rest, old, self.layout)
        self.body, self.rest = joined(self.body, new), only(self.rest, slots & ~old)


def codes_of(pairs: Exact, chosen: Bool[Tensor, "b h n"], layout: PairLayout) -> Body:
    """Quantise the chosen pairs."""
    k, v, columns = (t[chosen] for t in pairs.padded())
    return layout.encode(k, v, columns, chosen.sum(-1))
