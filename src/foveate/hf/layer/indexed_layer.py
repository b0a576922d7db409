"""A cache layer of sparse attention (DSA), whose indexer chooses what each query attends to.

The indexer's keys are stored behind the rotary keys, so whatever moves pairs moves them as well.
The indexer itself works on columns, as without a policy. Evicted columns are masked for it, so that
it chooses among kept tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedConfig

from foveate.compression.pipeline import Kept
from foveate.errors import InvalidInput, UnsupportedCache
from foveate.hf.layer.cache_layer import LINK, FoveateLayer, is_whole
from foveate.hf.layer.hooks import named
from foveate.hf.layer.projection import EXPAND
from foveate.hf.layer.state import Expansion
from foveate.hf.model.internals import given_cache
from foveate.policies.protocols import NoMerge


class FoveateIndexedLayer(FoveateLayer):  # type: ignore[no-untyped-call]
    """One layer of a cache under a policy, with the keys of its indexer, if it has its own."""

    def _empty(self) -> None:
        super()._empty()
        self.without_index: tuple[Tensor, Tensor] | None = None  # pairs of this pass

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the new pairs; those of a layer with an indexer once their index keys are known.

        Return views with an entry for every column, because the model counts columns by them. Their
        content is not read.
        """
        columns, _ = self.get_mask_sizes(key_states.shape[2])
        if self.model_index in self.state.link.indexers:
            self.without_index = key_states, value_states
        else:
            super().update(key_states, value_states)
        keys = key_states[:, :, :1].expand(-1, -1, columns, -1)
        setattr(keys, LINK, self)
        return keys, value_states

    def update_indexer(self, indexer_key_states: Float[Tensor, "b m d"]) -> Float[Tensor, "b n d"]:
        """Append the pass's pairs with their index keys; return the index keys of all columns, with
        zeros for evicted ones.
        """
        if self.without_index is None:
            raise InvalidInput(f"layer {self.model_index} got index keys without keys and values.")
        (latents, rotary), self.without_index = self.without_index, None
        earlier = self._index_keys(indexer_key_states.shape[2])
        super().update(latents, torch.cat([rotary, indexer_key_states[:, None]], dim=-1))
        if earlier is None:
            return indexer_key_states
        return torch.cat([earlier.to(indexer_key_states.dtype), indexer_key_states], dim=1)

    def _index_keys(self, size: int) -> Float[Tensor, "b n d"] | None:
        """Return the stored index keys by column; None if there are none."""
        if self.stored is None or not self.seen:
            return None
        _, values, columns = self.stored.opened().padded()
        keys = values[:, 0, :, -size:]
        if is_whole(self.stored):
            return keys
        by_column = keys.new_zeros(len(keys), self.seen + 1, size)
        index = columns[:, 0].long() % (self.seen + 1)  # -1, an empty slot, is the last one
        by_column.scatter_(1, index[..., None].expand_as(keys), keys)
        return by_column[:, : self.seen]

    def _take_drafts(self, k: Tensor, v: Tensor, end: int) -> NoReturn:
        """Refuse draft tokens in the pass that ends the prompt: the indexer has chosen for them
        before anything is evicted.
        """
        raise UnsupportedCache(
            "draft tokens arrived in the pass that ends the prompt, and this model's indexer "
            "chooses for all tokens of a pass at once. Read the prompt with session.prefill(...) "
            "first, or leave assisted (or prompt lookup) decoding out."
        )

    def keep(self, kept: Kept) -> None:
        """Replace the stored pairs by the kept ones; a merged pair keeps its own index key."""
        indexer = self.state.link.indexers.get(self.model_index)
        if indexer is not None and not isinstance(self.policy.merge, NoMerge):
            own = self.pairs.padded().v[..., -indexer.head_dim :]
            merged = kept.v[..., : -indexer.head_dim]
            kept = replace(kept, v=torch.cat([merged, own], dim=-1))
        super().keep(kept)

    def among_kept(self, mask: Tensor) -> Tensor:
        """Mask the evicted columns in the indexer's mask [b, queries, columns].

        Raises:
            InvalidInput: the padding is unknown while a prompt is read.
        """
        turn, pairs = self.state.turn, self.stored
        if turn.end is not None and not turn.padding_told:
            raise InvalidInput(
                "the padding of a prompt cannot be read from the masks of sparse attention. Pass "
                "attention_mask with one entry for each token, [batch, tokens], or none."
            )
        if pairs is None or not pairs.compressed:
            return mask
        kept = self._kept_columns(pairs.columns[:, 0], mask.shape[-1])[:, None]
        if mask.dtype == torch.bool:
            return mask & kept
        return mask.masked_fill(~kept, torch.finfo(mask.dtype).min)

    def _kept_columns(self, columns: Tensor, count: int) -> Bool[Tensor, "b n"]:
        """Return which of ``count`` columns are stored, or of this pass."""
        kept = torch.ones(len(columns), count + 1, dtype=torch.bool, device=columns.device)
        kept[:, : self.seen] = False
        kept.scatter_(1, columns.long() % (count + 1), value=True)
        return kept[:, :count]


def mask_evicted(indexer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Pass an indexer a mask without evicted columns: a hook before its ``forward``."""
    inputs = {**named(indexer.forward, tuple(args)), **kwargs}
    cache: Any = given_cache(inputs)
    layer = None if cache is None else cache.layers[indexer.layer_idx]
    if not isinstance(layer, FoveateIndexedLayer):
        return None
    return (), {**inputs, "attention_mask": layer.among_kept(inputs["attention_mask"])}


def indexers(expanding: Mapping[int, nn.Module]) -> dict[int, Any]:
    """Find the indexers of attention modules, by layer of the model."""
    by_layer = {layer: getattr(module, "indexer", None) for layer, module in expanding.items()}
    return {layer: indexer for layer, indexer in by_layer.items() if indexer is not None}


class WithoutIndex:
    """An expansion of latents, for values that are rotary keys with index keys behind them.

    ``__self__`` is the attention module, as that of a bound method.
    """

    def __init__(self, expand: Callable[..., Any], rotary: int):
        self._expand, self._rotary = expand, rotary
        self.__self__ = getattr(expand, "__self__", None)

    def __call__(self, latents: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Expand the latents, with the rotary keys alone."""
        keys, per_head = self._expand(latents, values[..., : self._rotary])
        return keys, per_head


def expansions(expanding: Mapping[int, Any]) -> dict[int, Expansion]:
    """Return the attention modules' expansions of stored latents, by layer of the model."""
    methods: dict[int, Expansion] = {i: getattr(module, EXPAND) for i, module in expanding.items()}
    if not indexers(expanding):
        return methods
    # all of them: a layer without an indexer may read the pairs of one that has index keys
    return {i: WithoutIndex(expand, expanding[i].qk_rope_head_dim) for i, expand in methods.items()}


def leaders(config: PreTrainedConfig, layers: Sequence[int]) -> dict[int, int]:
    """Map the ordinals of layers that have to keep the set of an earlier one to its ordinal: where
    one layer attends to what another's indexer chose, both have to keep the same tokens.
    """
    kinds = list(getattr(config, "indexer_types", None) or ())
    sources = list(getattr(config, "kv_source_layers", None) or range(len(kinds)))
    first = list(range(len(kinds)))  # of each layer, the first one with the same set
    choosing = 0
    for index, kind in enumerate(kinds):
        choosing = choosing if kind == "shared" else index
        pair = first[sources[index]], first[sources[choosing]]
        first = [min(pair) if each in pair else each for each in first]
    ordinals = {index: ordinal for ordinal, index in enumerate(layers)}
    led = (index for index in layers if index < len(first) and first[index] != index)
    return {ordinals[index]: ordinals[first[index]] for index in led}
