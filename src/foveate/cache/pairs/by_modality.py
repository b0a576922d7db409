"""Pairs with visual tokens in codes, and text in more bits or in full precision."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.pairs.body import Body, PairLayout, joined, selected
from foveate.cache.pairs.dense import Padded
from foveate.cache.pairs.pairs import Exact, Pairs
from foveate.cache.pairs.quantised import CodedPairs, QuantisedPairs, codes_of
from foveate.cache.pairs.ragged import exact, only, store

Text = Exact | QuantisedPairs


class ModalityPairs(CodedPairs[Text]):
    """A quantised ``body`` of visual tokens, and all other pairs (``rest``).

    Later pairs are added to the rest; :meth:`see` moves visual ones of them to the body.
    """

    name = "visual"

    def __init__(self, body: Body, rest: Text, layout: PairLayout):
        self.body, self.rest, self.layout = body, rest, layout

    @classmethod
    def of(
        cls,
        pairs: Exact,
        visual: Bool[Tensor, "b c"],
        layout: PairLayout,
        text: PairLayout | None,
        residual: int,
    ) -> ModalityPairs:
        """Quantise the pairs of ``visual`` columns.

        The others get codes of the layout ``text``, except a head's last ``residual``; or they stay
        in full precision if ``text`` is None.
        """
        chosen = of_columns(visual, pairs.columns)
        exact = only(pairs, (pairs.columns >= 0) & ~chosen)
        others: Text = exact if text is None else QuantisedPairs.of(exact, text, residual)
        return cls(codes_of(pairs, chosen, layout), others, layout)

    @classmethod
    def restored(
        cls,
        tensors: Mapping[str, Tensor],
        first: int,
        layout: PairLayout,
        text: PairLayout | None,
        residual: int,
    ) -> ModalityPairs:
        """Rebuild the pairs from their ``tensors()``; ``first`` is the first column not listed."""
        others: Text = exact(tensors, first)
        if text is not None:
            others = QuantisedPairs.restored(tensors, first, text, residual)
        return cls(cls.body_in(tensors), others, layout)

    def see(self, visual: Bool[Tensor, "b c"]) -> ModalityPairs:
        """Return these pairs, with later ones in ``visual`` columns quantised, too."""
        text, exact = self.rest, self._exact
        chosen = of_columns(visual, exact.columns)
        if not bool(chosen.any()):
            return self
        remaining = only(exact, (exact.columns >= 0) & ~chosen)
        body = joined(self.body, codes_of(exact, chosen, self.layout))
        rest = text.but(remaining) if isinstance(text, QuantisedPairs) else remaining
        copied: ModalityPairs = self.but(rest, body)
        return copied

    @property
    def columns(self) -> Int[Tensor, "b h n"]:
        """Original column of each slot, right-aligned, -1 in the empty slots in front."""
        columns = torch.cat([self._padded(self.body.columns.long(), -1), self.rest.columns], dim=2)
        return columns.sort(dim=-1).values[..., columns.shape[2] - self.longest :]

    def padded(self) -> Padded:
        """Return all slots in full precision, in the order of their columns: a temporary copy."""
        text = self.rest.padded()
        k, v = self.layout.decode(self.body, text.k.shape[3], text.v.shape[3])
        early = (self._padded(k, 0), self._padded(v, 0), self._padded(self.body.columns.long(), -1))
        k, v, columns = (torch.cat(both, dim=2) for both in zip(early, text, strict=True))
        order = columns.argsort(dim=-1)[..., columns.shape[2] - self.longest :]
        k, v = (t.gather(2, order[..., None].expand(*order.shape, t.shape[3])) for t in (k, v))
        return Padded(k, v, columns.gather(2, order))

    def _padded(self, flat: Tensor, empty: int) -> Tensor:
        """Return a number per pair of the body, [f, ...], as [b, h, n, ...], left-aligned."""
        counts = self.body.counts
        slots = torch.arange(int(counts.max()), device=counts.device) < counts[..., None]
        out = flat.new_full((*slots.shape, *flat.shape[1:]), empty)
        out[slots] = flat
        return out

    def opened(self) -> Exact:
        """Return all pairs in full precision: a temporary copy."""
        k, v, columns = self.padded()
        return store(k, v, columns, columns >= 0, self._exact.next_column)

    @property
    def _exact(self) -> Exact:
        """The pairs in full precision, to which new ones are added."""
        return self.rest.rest if isinstance(self.rest, QuantisedPairs) else self.rest

    def only(self, kept: Bool[Tensor, "b h n"]) -> ModalityPairs:
        """Return a copy with the kept slots only; codes stay as they are."""
        early, newer = self._padded(self.body.columns.long(), -1), self.rest.columns
        columns = torch.cat([early, newer], dim=2)
        order = columns.argsort(dim=-1)[..., columns.shape[2] - self.longest :]
        kept_by_column = torch.zeros_like(columns, dtype=torch.bool).scatter(2, order, kept)
        kept_body, kept_rest = torch.split(kept_by_column, [early.shape[2], newer.shape[2]], dim=2)
        body = selected(self.body, kept_body[early >= 0])
        text, kept_rest = self.rest, kept_rest & (newer >= 0)
        rest = text.only(kept_rest) if isinstance(text, QuantisedPairs) else only(text, kept_rest)
        copied: ModalityPairs = self.but(rest, body)
        return copied


def of_columns(visual: Bool[Tensor, "b c"], columns: Int[Tensor, "b h n"]) -> Bool[Tensor, "b h n"]:
    """Return the slots with a visual token, as a mask.

    ``visual`` marks visual columns; columns beyond it are text.
    """
    known = visual.to(columns.device)[:, None].expand(-1, columns.shape[1], -1)
    in_prompt = (columns >= 0) & (columns < visual.shape[1])
    if not visual.shape[1]:
        return in_prompt
    return known.gather(2, columns.clamp(0, visual.shape[1] - 1)) & in_prompt


def bits_held(pairs: Pairs, model_bits: int) -> float:
    """Return the mean bits per stored number.

    A number in codes counts the bits of its code, without its group's minimum and step; any other
    counts ``model_bits``, those of the model's dtype.
    """
    if not isinstance(pairs, QuantisedPairs | ModalityPairs):
        return float(model_bits)
    coded, others = int(pairs.body.counts.sum()), int(pairs.rest.counts.sum())
    tensors, bits = pairs.rest.tensors(), float(pairs.layout.bits)
    if not pairs.layout.codes_values:
        key, value = (tensors[name].shape[3] for name in ("k", "v"))
        bits = (key * bits + value * model_bits) / (key + value)
    total = coded * bits + others * bits_held(pairs.rest, model_bits)
    return total / max(1, coded + others)
