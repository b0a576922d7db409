"""Pairs whose visual tokens are held in codes, and whose text in more bits, or as it came."""

from __future__ import annotations

from copy import copy

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.pairs.body import Body, CodeLayout, joined, of_rows, renumbered, restored, some
from foveate.cache.pairs.dense import Padded
from foveate.cache.pairs.pairs import Exact
from foveate.cache.pairs.quantised import QuantisedPairs, codes_of
from foveate.cache.pairs.ragged import only, store

Text = Exact | QuantisedPairs


class ModalityPairs:
    """A quantised ``body`` of visual tokens, and all other pairs (``text``), to which what comes
    later is added. Visual ones among these go to the body once they are told of (:meth:`see`).
    """

    def __init__(self, body: Body, text: Text, layout: CodeLayout):
        self.body, self.text, self.layout = body, text, layout

    @classmethod
    def of(
        cls,
        pairs: Exact,
        visual: Bool[Tensor, "b c"],
        layout: CodeLayout,
        text: CodeLayout | None,
        residual: int,
    ) -> ModalityPairs:
        """The pairs with those of ``visual`` columns in codes; the others in codes of the layout
        ``text``, but the last ``residual`` of a head, or as they are.
        """
        chosen = of_columns(visual, pairs.columns)
        exact = only(pairs, (pairs.columns >= 0) & ~chosen)
        others: Text = exact if text is None else QuantisedPairs.of(exact, text, residual)
        return cls(codes_of(pairs, chosen, layout), others, layout)

    def see(self, visual: Bool[Tensor, "b c"]) -> ModalityPairs:
        """The same pairs, of which those of ``visual`` columns that came later are in codes."""
        text, rest = self.text, self._rest
        chosen = of_columns(visual, rest.columns)
        if not bool(chosen.any()):
            return self
        left = only(rest, (rest.columns >= 0) & ~chosen)
        body = joined(self.body, codes_of(rest, chosen, self.layout))
        return self._with(body, text.but(left) if isinstance(text, QuantisedPairs) else left)

    @property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs held per row and KV head."""
        return self.body.counts + self.text.counts

    @property
    def longest(self) -> int:
        """The most pairs that one head holds."""
        return int(self.counts.max())

    @property
    def compressed(self) -> bool:
        """Always True: they are not what the model wrote."""
        return True

    @property
    def first(self) -> int:
        """The first column that is not listed."""
        return self.text.first

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held."""
        return sum(t.nbytes for t in self.body) + self.text.nbytes

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot, right-aligned, -1 in the empty slots in front."""
        columns = torch.cat([self._padded(self.body.columns.long(), -1), self.text.columns], dim=2)
        return columns.sort(dim=-1).values[..., columns.shape[2] - self.longest :]

    def padded(self) -> Padded:
        """All slots in full precision, in the order of their columns: a transient copy."""
        text = self.text.padded()
        k, v = restored(self.body, self.layout, text.v.shape[3])
        early = (self._padded(k, 0), self._padded(v, 0), self._padded(self.body.columns.long(), -1))
        k, v, columns = (torch.cat(both, dim=2) for both in zip(early, text, strict=True))
        order = columns.argsort(dim=-1)[..., columns.shape[2] - self.longest :]
        k, v = (t.gather(2, order[..., None].expand(*order.shape, t.shape[3])) for t in (k, v))
        return Padded(k, v, columns.gather(2, order))

    def _padded(self, flat: Tensor, empty: int) -> Tensor:
        """What is said of each pair of the body, [f, ...], as [b, h, n, ...], left-aligned."""
        counts = self.body.counts
        slots = torch.arange(int(counts.max()), device=counts.device) < counts[..., None]
        out = flat.new_full((*slots.shape, *flat.shape[1:]), empty)
        out[slots] = flat
        return out

    def opened(self) -> Exact:
        """All in full precision: a transient copy."""
        k, v, columns = self.padded()
        return store(k, v, columns, columns >= 0, self._rest.next_column)

    @property
    def _rest(self) -> Exact:
        """The pairs in full precision, to which new ones are added."""
        return self.text.rest if isinstance(self.text, QuantisedPairs) else self.text

    def only(self, kept: Bool[Tensor, "b h n"]) -> ModalityPairs:
        """A copy that holds the kept slots; codes stay as they are."""
        early, newer = self._padded(self.body.columns.long(), -1), self.text.columns
        columns = torch.cat([early, newer], dim=2)
        order = columns.argsort(dim=-1)[..., columns.shape[2] - self.longest :]
        held = torch.zeros_like(columns, dtype=torch.bool).scatter(2, order, kept)
        coded, left = torch.split(held, [early.shape[2], newer.shape[2]], dim=2)
        body = some(self.body, coded[early >= 0])
        text = self.text
        left = left & (newer >= 0)
        return self._with(
            body, text.only(left) if isinstance(text, QuantisedPairs) else only(text, left)
        )

    def append(self, k: Tensor, v: Tensor) -> None:
        """Adds the next columns."""
        self.text.append(k, v)

    def crop(self, count: int) -> bool:
        """Takes back the newest ``count`` columns; False if they are in codes."""
        return self.text.crop(count)

    def renumber(self, table: Int[Tensor, "c"]) -> None:
        """Column i becomes ``table[i]``; the last one is of the next token."""
        self.body = renumbered(self.body, table)
        self.text.renumber(table)

    def take_rows(self, rows: Int[Tensor, "r"]) -> None:
        """The batch becomes these rows of it, in this order, repeats allowed."""
        self.body = of_rows(self.body, rows)
        self.text.take_rows(rows)

    def fork(self) -> ModalityPairs:
        """An independent copy: it shares the body, which never changes."""
        return self._with(self.body, self.text.fork())

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor held, by name, without spare room."""
        return self.text.tensors() | {f"visual.{n}": t for n, t in self.body._asdict().items()}

    def _with(self, body: Body, text: Text) -> ModalityPairs:
        other = copy(self)
        other.body, other.text = body, text
        return other


def of_columns(visual: Bool[Tensor, "b c"], columns: Int[Tensor, "b h n"]) -> Bool[Tensor, "b h n"]:
    """Which slots hold a visual token, given that of every column; what is not told of is text."""
    known = visual.to(columns.device)[:, None].expand(-1, columns.shape[1], -1)
    in_prompt = (columns >= 0) & (columns < visual.shape[1])
    if not visual.shape[1]:
        return in_prompt
    return known.gather(2, columns.clamp(0, visual.shape[1] - 1)) & in_prompt
