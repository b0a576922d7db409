"""Layers whose KV heads keep different numbers of tokens. For vLLM's pool each head is a layer of
its own, with its own pages, block table and metadata.

A head's name is the layer's name plus the head's number; the first head has the layer's own name,
by which vLLM looks metadata up. The model calls the layer as before, and the layer's implementation
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
    """A layer, or one of its KV heads, with its own pages: attention, metadata and cache."""

    implementation: Any
    metadata: Any
    cache: Tensor
    queries: slice = EVERY
    pairs: slice = EVERY


def head_names(layer: str, heads: int) -> list[str]:
    """Return the names of a layer's KV heads."""
    return [layer, *(f"{layer}#{head}" for head in range(1, heads))]


class Head(AttentionLayerBase):
    """Placeholder layer that registers one KV head, except the first, with vLLM's pool. It is never
    called.
    """

    def __init__(self, layer: Any):
        self._layer, self.impl = layer, layer.impl
        # the layer's number, as vLLM splits a group whose layers differ in it
        self.num_heads = layer.num_heads

    def get_attn_backend(self) -> Any:
        return self._layer.get_attn_backend()

    def get_kv_cache_spec(self, vllm_config: Any) -> None:
        """Return None: the worker sets the head's spec."""


class Split:
    """KV heads of one layer as cells, with these ``names``; ``named`` has all of vLLM's layers."""

    def __init__(self, layer: Any, names: Sequence[str], named: dict[str, Any]):
        self.group = layer.impl.num_heads // len(names)
        self._names, self._named = names, named
        per_head = copy(layer.impl)
        per_head.num_heads = per_head.num_queries_per_kv = self.group
        per_head.num_kv_heads = 1
        self.implementation = per_head  # vLLM's attention for one KV head

    def cells(self) -> list[Cell]:
        """Return the cells of this pass; none before there is a pool, when vLLM measures the memory
        of graphs and does not know the heads yet.
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
    def has_own_pages(self) -> bool:
        """True if each head has its own pages in this pass."""
        return self._names[-1] in get_forward_context().slot_mapping

    def pages(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each head's cache and its slot mapping in this pass; needs ``has_own_pages``."""
        slots = get_forward_context().slot_mapping
        for name in self._names:
            yield self._named[name].kv_cache, slots[name]


def split(layers: dict[str, Any], names: Sequence[str], heads: int) -> None:
    """Register the KV heads of these layers with vLLM. Idempotent."""
    for name in names:
        mine = head_names(name, heads)
        for other in mine[1:]:
            layers.setdefault(other, Head(layers[name]))
        layers[name].foveate_heads = Split(layers[name], mine, layers)
