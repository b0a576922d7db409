"""Positions without gaps: keys that are held are turned to where they would stand if the positions
that no token has any more had never been.

A model knows positions up to some number. What a cache has forgotten leaves gaps, and closing them
takes the positions of an endless prompt back below that number. Order stays, on every axis of
M-RoPE; equal positions stay equal. Keys are turned by the difference alone, in double precision.

Source: HERMES (arXiv:2601.14724), position re-indexing, whose layers each close their own gaps.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.cache.pairs import DensePairs, RaggedPairs
from foveate.errors import UnsupportedCache
from foveate.hf.endless.endless import forget
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.measuring.record import record
from foveate.hf.measuring.rotation import TOKENS, rotations
from foveate.hf.model.internals import rope_offsets
from foveate.ops.rotation import Rotation, turned_by

_FAR = 20_011  # positions, at which also slow pairs of channels have turned


class Turned(NamedTuple):
    """How a layer turns its keys: the rotation, and the axis whose positions turn each pair."""

    rotation: Rotation
    axis: Int[Tensor, "r"]

    def by(
        self, x: Float[Tensor, "*x d"], difference: Int[Tensor, "axes *#x"]
    ) -> Float[Tensor, "*x d"]:
        """Vectors turned by so many positions on each axis."""
        rotation = self.rotation.to(x.device)
        of_pairs = difference.to(x.device)[self.axis.to(x.device)].movedim(0, -1)
        angles = of_pairs.double() * rotation.frequencies.double()
        return turned_by(x, angles, rotation).to(x.dtype)


def ways_to_turn(model: PreTrainedModel, ids: Int[Tensor, "1 t"]) -> list[Turned]:
    """Of every compressed layer, found out with some text.

    Raises:
        UnsupportedModel: another rotation than those that are known.
    """
    ids = ids.repeat(1, -(-TOKENS // ids.shape[1]))[:, :TOKENS]
    turns = rotations(model, {"input_ids": ids})
    axis = _axes(model, ids, turns[0]) if rope_offsets(model) else None
    none = torch.zeros_like(turns[0].first)
    return [Turned(one, none[: len(one.first)] if axis is None else axis) for one in turns]


def _axes(model: PreTrainedModel, ids: Int[Tensor, "1 t"], rotation: Rotation) -> Int[Tensor, "r"]:
    """Which axis turns each pair of channels, as the first layer's queries show."""
    here = torch.arange(ids.shape[1], device=ids.device).repeat(3, 1, 1)
    moved = []
    for axis in (None, 0, 1, 2):
        places = here.clone()
        if axis is not None:
            places[axis] += _FAR
        layer = record(model, input_ids=ids, position_ids=places, sums=False).layers[0]
        moved.append(layer.q.double())
    stays, *others = moved
    apart = torch.stack([(one - stays).abs().amax((0, 1, 2)) for one in others])
    return (apart[:, rotation.first] + apart[:, rotation.second]).argmax(0)


def next_position(cache: DynamicCache) -> int:
    """Where the next token stands; positions have to be noted."""
    places = known_state(cache).tokens.position
    return 0 if places is None or not places.numel() else int(places.max()) + 1


def reindex(cache: DynamicCache, ways: list[Turned]) -> None:
    """Closes the gaps between the positions of what is held, and of the last queries.

    Raises:
        UnsupportedCache: pairs that are not in full precision.
    """
    state, layers = known_state(cache), foveate_layers(cache)
    if state.tokens.position is None:
        return
    remembered = [layer.memory.queries for layer in layers if layer.memory.queries is not None]
    wide = max((queries.shape[2] for queries in remembered), default=0)
    last = state.tokens.position[:, state.tokens.position.shape[1] - wide :]
    forget(cache)
    places = state.tokens.position
    used = torch.unique(torch.cat([places.flatten(), last.flatten()]))
    difference, of_last = (
        torch.searchsorted(used, one.contiguous()) - one for one in (places, last)
    )
    for layer, way in zip(layers, ways, strict=True):
        pairs, memory = layer.pairs, layer.memory
        if not isinstance(pairs, DensePairs | RaggedPairs):
            raise UnsupportedCache(
                f"keys held as {type(pairs).__name__} cannot be turned to other positions. Use a "
                'store in full precision, or positions="true".'
            )
        pairs.turn(partial(_turned, way, difference))
        if (queries := memory.queries) is not None:
            memory.queries = way.by(queries, of_last[:, None, None, -queries.shape[2] :])
    state.tokens = state.tokens.ahead(len(used) - layers[0].seen)
    state.update_tokens(position=places + difference)


def _turned(
    way: Turned,
    difference: Int[Tensor, "axes seen"],
    keys: Float[Tensor, "*x d"],
    columns: Int[Tensor, "*x"],
) -> Float[Tensor, "*x d"]:
    return way.by(keys, difference[:, columns])
