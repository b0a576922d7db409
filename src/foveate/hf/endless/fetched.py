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
from foveate.hf.layer.shared import SharedByLayers
from foveate.hf.layer.state import CacheState
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
            made.places = state.places
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
    _widen(state, len(whole), table, torch.searchsorted(whole, returning.tokens), returning)
    state.forgotten -= came
    state.shift -= came
    offsets = {name: t for name, t in state.extras.items() if isinstance(t, Tensor)}  # M-RoPE's
    state.extras |= {name: t - came for name, t in offsets.items()}


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


def _widen(
    state: CacheState,
    end: int,
    table: Int[Tensor, "seen"],
    places: Int[Tensor, "u"],
    returning: Returning,
) -> None:
    """What is known of every token, of those that came back as well."""
    state.shared, state.places = SharedByLayers(), None
    if state.images_given is not None:
        image, spot = (t.new_full((1, end), -1) for t in state.images_given)
        for into, known, new in zip((image, spot), state.images_given, returning[1:3], strict=True):
            into[:, places.to(into.device)] = new.to(into)
            into[:, table.to(into.device)] = known
        state.images_given = image, spot
    for name in ("vision", "frames"):
        if (known := getattr(state, name)) is not None:
            wide = known.new_zeros(1, end)
            if name == "vision":
                wide[:, places.to(wide.device)] = True
            wide[:, table.to(wide.device)] = known
            setattr(state, name, wide)
