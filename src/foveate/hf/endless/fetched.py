"""Pairs that had left a cache are put back, at the places in its prompt at which they stood; and
what a pass makes is shown to whoever wants to keep it elsewhere.

The opposite of :mod:`foveate.hf.endless.endless`: tokens that were counted no more are counted
again. Positions are the true ones, so keys are put back as they were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache

from foveate.cache.pairs import Pairs, store
from foveate.hf.layer.support import foveate_layers, known_state


@dataclass
class Made:
    """What a pass makes, by ordinal of the layer: new keys and values, and perhaps queries.
    ``places`` are the positions of all tokens that the cache then counts, if they are noted.
    """

    k: dict[int, Float[Tensor, "1 h t d"]] = field(default_factory=dict)
    v: dict[int, Float[Tensor, "1 h t e"]] = field(default_factory=dict)
    q: dict[int, Float[Tensor, "1 hq t d"]] | None = None
    places: Int[Tensor, "axes seen"] | None = None


@contextmanager
def looked_at(cache: DynamicCache, made: Made | None) -> Iterator[None]:
    """Fills in what the latest pass inside makes, but for those that do not stay."""
    state = known_state(cache)
    try:
        state.made = made
        yield
        if made is not None:
            made.places = state.tokens.position
    finally:
        state.made = None


class Back(NamedTuple):
    """Pairs of one layer that are put back: ``tokens`` are their places in the prompt, in order."""

    tokens: Int[Tensor, "f"]
    k: Float[Tensor, "1 h f d"]
    v: Float[Tensor, "1 h f e"]


class Returning(NamedTuple):
    """All that is put back: ``tokens`` are those of any layer, with the image and the spot of each;
    ``layers`` are by ordinal.
    """

    tokens: Int[Tensor, "u"]
    image: Int[Tensor, "u"]
    spot: Int[Tensor, "u"]
    layers: Sequence[Back]


def put_back(cache: DynamicCache, held: Int[Tensor, "seen"], returning: Returning) -> None:
    """Has the layers hold what is found beside what they hold; of a token that a layer holds in
    part, or merged with others, what is found.

    Args:
        cache: whose prompt goes on, with one row.
        held: for each column, the place of its token in the prompt, counted from its beginning.
        returning: what is put back.
    """
    state = known_state(cache)
    whole = torch.unique(torch.cat([held, returning.tokens]))
    table = torch.searchsorted(whole, held)
    came = len(whole) - len(held)
    for layer, back in zip(foveate_layers(cache), returning.layers, strict=True):
        layer.in_order()
        columns = torch.searchsorted(whole, back.tokens)
        layer.put(_joined(layer.pairs, table, back, columns, len(whole)))
        layer.seen += came
        layer.at = layer.at._replace(seen=layer.seen)
    columns = torch.searchsorted(whole, returning.tokens)
    state.tokens = state.tokens.concat(
        (returning.image[None], returning.spot[None]), table, columns
    )
    state.view = None


def _joined(
    pairs: Pairs, table: Int[Tensor, "seen"], back: Back, places: Int[Tensor, "f"], end: int
) -> Pairs:
    """What is held and what comes, in order; ``places`` are the columns of what comes."""
    k, v, columns = pairs.padded()
    table, places = table.to(k.device), places.to(k.device)
    columns = torch.where(columns < 0, -1, table[columns.clamp_min(0)])
    columns = columns.masked_fill(torch.isin(columns, places), -1)
    columns = torch.cat([columns, places.expand(*columns.shape[:2], -1)], dim=2)
    order = columns.argsort(dim=-1, stable=True)
    k, v = (torch.cat([x, new.to(x)], dim=2) for x, new in ((k, back.k), (v, back.v)))
    k, v = (x.gather(2, order[..., None].expand(*order.shape, x.shape[3])) for x in (k, v))
    columns = columns.gather(2, order)
    return store(k, v, columns, columns >= 0, end)
