"""A compressed cache whose tensors never move, so that one decoding step can be captured and
replayed.

A CUDA graph, or code compiled for fixed shapes, runs the same launches on the same addresses every
time and never syncs with the host. So the room for answers is allocated at the start, and the
device counts the slots in use. Slots after the count are masked.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.functional import pad

from foveate.cache.pairs import DensePairs, RaggedPairs
from foveate.errors import InvalidInput, UnsupportedCache
from foveate.hf.attention.by_products import ModelAttention, Output, without_backward
from foveate.hf.attention.dispatch import attend_visible
from foveate.hf.layer.cache_layer import LINK, FoveateLayer
from foveate.hf.layer.indexed_layer import FoveateIndexedLayer
from foveate.hf.layer.state import CacheState
from foveate.hf.model.internals import Cache, CacheLayerMixin
from foveate.ops.ragged_decode import ragged_decode


def fixed(cache: Any, state: CacheState, room: int) -> Cache:
    """Copy a compressed cache into one with ``room`` for so many more tokens, which never grows.

    Raises:
        InvalidInput: ``room`` is below 1, or the prompt is not finished.
        UnsupportedCache: layers that are not compressed, quantised pairs, or a policy that
            compresses while it decodes.
    """
    if isinstance(room, bool) or not isinstance(room, int) or room < 1:
        raise InvalidInput(f"room={room!r}: give the number of tokens that will be decoded.")
    if state.policy.when.decodes:
        raise UnsupportedCache(
            f"{state.policy.when!r} compresses while answers are decoded, which moves the stored "
            "pairs. Use when=after_prefill."
        )
    if state.shares_kv:
        raise UnsupportedCache(
            "some layers of this model read the keys and values of others, which a fixed cache "
            "does not support. Decode without session.fixed()."
        )
    own = CacheState(state.policy, state.link, state.depth)
    own.follow(state)
    return Cache(
        layers=[
            FixedLayer(_pairs_of(layer, i), layer.seen, own, room, layer.softmax_n, layer.expands)
            for i, layer in enumerate(cache.layers)
        ]
    )


def state_of(cache: object) -> CacheState | None:
    """Return the state of a cache that :func:`fixed` built; None for any other object."""
    layers = getattr(cache, "layers", None) or [None]
    return layers[0].state if isinstance(layers[0], FixedLayer) else None


def _pairs_of(layer: Any, index: int) -> DensePairs | RaggedPairs:
    if not isinstance(layer, FoveateLayer):
        raise UnsupportedCache(
            f"layer {index} of this cache is a {type(layer).__name__}, which is not compressed, "
            "and whose tensors move as it grows. Decode without session.fixed()."
        )
    if layer.seen == 0 or layer.armed:
        raise InvalidInput(
            "this cache's prompt has not been read to its end. Call session.prefill(...) first."
        )
    if not isinstance(layer.pairs, DensePairs | RaggedPairs):
        raise UnsupportedCache(
            f"pairs held as {layer.state.policy.store!r} are repacked as they grow. Decode without "
            "session.fixed(), or keep them in full precision."
        )
    if isinstance(layer, FoveateIndexedLayer):
        raise UnsupportedCache(
            f"layer {index} of this cache has an indexer, which chooses among all tokens at every "
            "step. Decode without session.fixed()."
        )
    if layer.expands is not None and isinstance(layer.pairs, RaggedPairs):
        raise UnsupportedCache(
            "rows that keep different numbers of latents cannot be fixed. Decode without "
            "session.fixed(), or one row at a time."
        )
    return layer.pairs


class FixedLayer(CacheLayerMixin):
    """One layer of a fixed cache. ``used`` counts the slots in use: all of a dense layer's, or
    those of a ragged layer's tail; its body stays unchanged. ``expands`` is the layer's index in
    the model, if it stores latents.
    """

    def __init__(
        self,
        pairs: DensePairs | RaggedPairs,
        seen: int,
        state: CacheState,
        room: int,
        n: float = 0.0,
        expands: int | None = None,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.state, self._expands = state, expands
        self._body = pairs if isinstance(pairs, RaggedPairs) else None
        growing = pairs.tail if isinstance(pairs, RaggedPairs) else pairs
        self.room, self._start = room, growing.size
        # zeros, not uninitialised memory: a masked NaN would still make the output NaN
        self._k, self._v = (pad(t, (0, 0, 0, room)) for t in (growing.k, growing.v))
        self.used = torch.tensor(growing.size, dtype=torch.long, device=self._k.device)
        self._without_slot = seen - growing.size  # tokens seen
        self._real = self._real_slots(pairs, state)
        self._n = n if pairs.compressed else 0.0
        self.is_initialized = True
        for tensor in (self._k, self._v, self.used):
            torch._dynamo.mark_static_address(tensor)

    def _real_slots(
        self, pairs: DensePairs | RaggedPairs, state: CacheState
    ) -> Bool[Tensor, "b 1 1 n"]:
        """Return a mask that is False at padding, which only a prompt without evicted pairs still
        stores.
        """
        (b, _, n, _), device = self._k.shape, self._k.device
        real = torch.ones(b, n, dtype=torch.bool, device=device)
        if not pairs.compressed:
            real &= torch.arange(n, device=device) >= state.tokens.padding(real)[:, None]
        return real[:, None, None]

    # transformers' interface of a cache layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: all room is allocated at the start."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write one token's pair after the slots in use, and count it."""
        if not self.state.link.open:
            self.state.link.refuse()
        if key_states.shape[2] != 1:
            raise InvalidInput(
                f"a fixed cache takes one token a pass, not {key_states.shape[2]}. Read prompts "
                "and questions before session.fixed()."
            )
        slot = self.used.view(1)
        try:
            self._k.index_copy_(2, slot, key_states.detach())
            self._v.index_copy_(2, slot, value_states.detach())
        except IndexError as full:  # CPU only: a GPU reports it asynchronously
            raise InvalidInput(
                f"this fixed cache has room for {self.room} tokens after its prompt, and all of it "
                "is used. Give session.fixed() more room."
            ) from full
        self.used.add_(1)
        keys = key_states.view_as(key_states)
        setattr(keys, LINK, self)
        return keys, value_states

    def get_seq_length(self) -> Tensor:  # type: ignore[override]
        """Return the number of tokens seen, as a tensor: positions are computed on the device."""
        return self.used + self._without_slot

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of columns of a full cache: masks span all of them from the start."""
        return self._without_slot + self._k.shape[2], 0

    def get_max_length(self) -> int:
        """Return the number of tokens that it will have seen when it is full."""
        return self._without_slot + self._k.shape[2]

    get_max_cache_shape = get_max_length  # the name before transformers 5.15

    def reset(self) -> None:
        """Return to the slots in use after :func:`fixed`, e.g. after the passes that warm up a
        graph.
        """
        self.used.fill_(self._start)
        self.state.ongoing = None  # an interrupted pass is discarded, too

    def reorder_cache(self, beam_idx: Tensor) -> NoReturn:
        """Raise UnsupportedCache: beams move rows, which a fixed cache cannot."""
        raise UnsupportedCache("a fixed cache cannot reorder its rows. Use it without beams.")

    # Attention

    def attend(
        self, attention: ModelAttention, query: Tensor, own_mask: Any, scale: float
    ) -> Output:
        """Compute the attention over the slots in use. The model's mask is not needed: a query sees
        all kept pairs of the prompt and all decoded ones.
        """
        if self._body is not None:
            body = self._body
            if not attention.replaceable:
                raise UnsupportedCache(
                    "heads that keep different numbers of tokens, and a model with caps or sinks "
                    "in its attention, cannot be fixed. Decode without session.fixed()."
                )
            decoded = ragged_decode(
                query,
                body.flat_k,
                body.flat_v,
                body.lengths,
                self._k,
                self._v,
                scale,
                self._n,
                starts=body.starts,
                longest=body.longest_body,
                tail_length=self.used.view(1),
            )
            return without_backward(decoded.transpose(1, 2)), None
        visible = self._real & (torch.arange(self._k.shape[2], device=query.device) < self.used)
        mask = own_mask if attention.takes_masks else None
        k, v = self._k, self._v
        if self._expands is not None:
            k, v = self.state.link.expansions[self._expands](k, v)
        out = attend_visible(attention, query, k, v, visible, mask, scale, self._n)
        return without_backward(out.output), out.weights
