"""Re-rotation of stored keys to positions without gaps.

A model supports positions up to some number. Forgotten tokens leave gaps, and closing them brings
the positions of an endless prompt back below that number. Order stays, on every axis of M-RoPE;
equal positions stay equal. Keys are rotated by the difference only, in double precision.

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
from foveate.errors import UnsupportedCache, UnsupportedModel
from foveate.hf.endless.endless import held_columns
from foveate.hf.layer.indexed_layer import indexers
from foveate.hf.layer.projection import with_latents
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.measuring.record import record
from foveate.hf.measuring.rotation import TOKENS, rotations
from foveate.hf.model.internals import rope_offsets
from foveate.ops.rotation import Rotation, turned_by

_FAR = 20_011  # positions: far enough that slow pairs of channels rotate measurably


class Turned(NamedTuple):
    """Rotation of a layer's keys, and the axis whose positions rotate each pair of channels."""

    rotation: Rotation
    axis: Int[Tensor, "r"]

    def by(
        self, x: Float[Tensor, "*x d"], difference: Int[Tensor, "axes *#x"]
    ) -> Float[Tensor, "*x d"]:
        """Rotate vectors by ``difference`` positions on each axis."""
        rotation = self.rotation.to(x.device)
        of_pairs = difference.to(x.device)[self.axis.to(x.device)].movedim(0, -1)
        angles = of_pairs.double() * rotation.frequencies.double()
        return turned_by(x, angles, rotation).to(x.dtype)

    @property
    def of_rotary_keys(self) -> Turned:
        """The rotation of the channels that rotate alone, as latent attention stores them."""
        first, second, frequencies = self.rotation
        start = first.min() if len(first) else 0
        return self._replace(rotation=Rotation(first - start, second - start, frequencies))


def ways_to_turn(model: PreTrainedModel, ids: Int[Tensor, "1 t"]) -> list[Turned]:
    """Measure the rotation of every compressed layer on a text of ``ids``.

    Raises:
        UnsupportedModel: a rotation that Foveate does not know, or index keys beside the keys.
    """
    if indexers(with_latents(model)):
        raise UnsupportedModel(
            f"{type(model).__name__} has indexers, whose keys cannot be rotated to other "
            'positions. Use positions="true".'
        )
    ids = ids.repeat(1, -(-TOKENS // ids.shape[1]))[:, :TOKENS]
    turns = rotations(model, {"input_ids": ids})
    axis = _axes(model, ids, turns[0]) if rope_offsets(model) else None
    zeros = torch.zeros_like(turns[0].first)
    return [Turned(r, zeros[: len(r.first)] if axis is None else axis) for r in turns]


def _axes(model: PreTrainedModel, ids: Int[Tensor, "1 t"], rotation: Rotation) -> Int[Tensor, "r"]:
    """Measure the axis that rotates each pair of channels, on the first layer's queries."""
    start = torch.arange(ids.shape[1], device=ids.device).repeat(3, 1, 1)
    moved = []
    for axis in (None, 0, 1, 2):
        positions = start.clone()
        if axis is not None:
            positions[axis] += _FAR
        layer = record(model, input_ids=ids, position_ids=positions, sums=False).layers[0]
        moved.append(layer.q.double())
    base, *shifted = moved
    difference = torch.stack([(queries - base).abs().amax((0, 1, 2)) for queries in shifted])
    return (difference[:, rotation.first] + difference[:, rotation.second]).argmax(0)


def next_position(cache: DynamicCache) -> int:
    """Return the position of the next token; positions have to be recorded."""
    positions = known_state(cache).tokens.position
    return 0 if positions is None or not positions.numel() else int(positions.max()) + 1


def reindex(cache: DynamicCache, ways: list[Turned]) -> None:
    """Close the gaps between the positions of the stored tokens, and of the last queries.

    An evicted token shares the position of the next stored one.

    Raises:
        UnsupportedCache: pairs that are not in full precision.
    """
    state, layers = known_state(cache), foveate_layers(cache)
    positions, stored = state.tokens.position, held_columns(cache)
    if positions is None:
        return
    stored = torch.ones_like(positions[0], dtype=torch.bool) if stored is None else stored.clone()
    remembered = [layer.memory.queries for layer in layers if layer.memory.queries is not None]
    wide = max((queries.shape[2] for queries in remembered), default=0)
    stored[len(stored) - wide :] = True
    used = torch.unique(positions[:, stored.to(positions.device)])
    indices = torch.searchsorted(used, positions.contiguous()).clamp_max(len(used) - 1)
    difference = indices - positions
    if not bool(difference.any()):
        return
    for layer, way in zip(layers, ways, strict=True):
        pairs, memory = layer.pairs, layer.memory
        if not isinstance(pairs, DensePairs | RaggedPairs):
            raise UnsupportedCache(
                f"keys stored as {type(pairs).__name__} cannot be rotated to other positions. Use "
                'positions="true".'
            )
        latents = layer.expansion is not None
        pairs.turn(partial(_turned, way.of_rotary_keys if latents else way, difference), latents)
        if (queries := memory.queries) is not None:
            of_last = difference[:, len(stored) - queries.shape[2] :]
            memory.queries = way.by(queries, of_last[:, None, None])
    state.tokens = state.tokens.ahead(len(used) - layers[0].seen)
    state.update_tokens(position=positions + difference)


def _turned(
    way: Turned,
    difference: Int[Tensor, "axes seen"],
    keys: Float[Tensor, "*x d"],
    columns: Int[Tensor, "*x"],
) -> Float[Tensor, "*x d"]:
    return way.by(keys, difference[:, columns])
