"""Layers whose KV heads keep different numbers of tokens: each head is a layer of its own to vLLM's
pool, with pages, a block table and metadata of its own.

A head's name is the layer's, with its number behind it; the first head has the layer's own name, by
which vLLM looks metadata up. The model calls the layer as ever, and the layer's implementation
attends head by head, each KV head with the query heads that share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, NamedTuple

from torch import Tensor

from foveate.vllm.vllm_api import AttentionLayerBase, get_forward_context

EVERY = slice(None)


class Cell(NamedTuple):
    """What of a layer has pages of its own: all of it, or one KV head."""

    implementation: Any
    metadata: Any
    cache: Tensor
    queries: slice = EVERY
    pairs: slice = EVERY


def head_names(layer: str, heads: int) -> list[str]:
    """Return the names of a layer's KV heads."""
    return [layer, *(f"{layer}#{head}" for head in range(1, heads))]


class Head(AttentionLayerBase):
    """One KV head but the first, as vLLM's pool knows it. Nothing calls it."""

    def __init__(self, layer: Any):
        self._layer, self.impl = layer, layer.impl
        self.num_heads = layer.num_heads  # as its group's other layers say, or they are split

    def get_attn_backend(self) -> Any:
        return self._layer.get_attn_backend()

    def get_kv_cache_spec(self, vllm_config: Any) -> None:
        """None: the worker says what it is."""


class Split:
    """A layer's heads; ``named`` are all layers that vLLM knows, by name."""

    def __init__(self, layer: Any, names: Sequence[str], named: dict[str, Any]):
        self.group = layer.impl.num_heads // len(names)
        self._names, self._named = names, named
        one = copy(layer.impl)
        one.num_heads = one.num_queries_per_kv = self.group
        one.num_kv_heads = 1
        self.implementation = one  # vLLM's, for one KV head

    def cells(self) -> list[Cell]:
        """Those of this pass; none where vLLM takes the layer for one, as it does while it measures
        the memory of graphs, before there is a pool.
        """
        by_layer = get_forward_context().attn_metadata
        metadata = by_layer[0] if isinstance(by_layer, list) else by_layer
        if self._names[-1] not in metadata:
            return []
        return [
            Cell(
                self.implementation,
                metadata[name],
                self._named[name].kv_cache,
                slice(head * self.group, (head + 1) * self.group),
                slice(head, head + 1),
            )
            for head, name in enumerate(self._names)
        ]

    @property
    def apart(self) -> bool:
        """Whether each head has pages of its own in this pass."""
        return self._names[-1] in get_forward_context().slot_mapping

    def pages(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each head's cache, and where this pass's tokens are written in it, if they are apart."""
        slots = get_forward_context().slot_mapping
        for name in self._names:
            yield self._named[name].kv_cache, slots[name]


def split(layers: dict[str, Any], names: Sequence[str], heads: int) -> None:
    """Make the KV heads of these layers known to vLLM; a second call does nothing."""
    for name in names:
        mine = head_names(name, heads)
        for other in mine[1:]:
            layers.setdefault(other, Head(layers[name]))
        layers[name].foveate_heads = Split(layers[name], mine, layers)
