"""Cache layer with transformers' interface, whose pairs a policy compresses.

``get_seq_length`` is the true number of tokens seen, so rotary positions, masks and input slicing
stay those of the full cache. ``ways.py`` computes the attention of a pass over the stored pairs.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.cache.pairs import (
    Coded,
    DensePairs,
    ExpandedPairs,
    Form,
    ModalityPairs,
    Padded,
    Pairs,
    RewrittenPairs,
    Roomy,
    bits_held,
    listed,
    store,
    uncompressed_bytes,
)
from foveate.compression.early_removal import to_the_right
from foveate.compression.layer_memory import Pass, Remembered
from foveate.compression.pipeline import Kept
from foveate.errors import InvalidInput, NothingCompressed, UnsupportedCache
from foveate.hf.attention.computed import Computed
from foveate.hf.layer.projection import output_weight
from foveate.hf.layer.state import CacheState, Expansion
from foveate.hf.layer.stats import LayerStats, Stopwatch
from foveate.hf.model.internals import DynamicLayer
from foveate.policies.policy import Policy
from foveate.policies.protocols import FullPrecision, NoMerge

LINK = "_foveate"
"""Attribute of the keys that a layer returns, which refers back to the layer."""


class FoveateLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Pairs of one layer: ``ordinal`` among the compressed layers, ``model_index`` among all of the
    model's.
    """

    is_croppable = True

    def __init__(self, state: CacheState, model_index: int, ordinal: int):
        self.state, self.model_index, self.ordinal = state, model_index, ordinal
        state.layers.append(self)  # in ascending order of ordinals
        self._empty()
        super().__init__()  # type: ignore[no-untyped-call]

    def _empty(self) -> None:
        self.stored: Pairs | None = None
        self.seen = 0
        self.at = Pass.of(0, 0, 0)  # span of the latest pass
        self.linked = True  # whether the attention function found this layer
        self.drafts: tuple[Tensor, Tensor] | None = None  # pairs beyond the prompt, same pass
        self.computed: Computed | None = None  # of this pass, if pruning dropped tokens
        self.attended: Pairs | None = None  # pairs of this pass, if other layers read them, too
        self.watch = Stopwatch()
        self.full_bytes = 0
        self.ranks: tuple[Tensor, Tensor] | None = None  # columns and scores kept, if requested
        self._form: Form | None = None  # of new pairs, without their query heads
        self.is_initialized = False

    @property
    def policy(self) -> Policy:
        """Policy of the cache, with the shares that its budget leaves open written out."""
        return self.state.policy

    @property
    def pairs(self) -> Pairs:
        """Stored pairs; raises NothingCompressed before the first pass."""
        if self.stored is None:
            raise NothingCompressed(f"layer {self.model_index} of this cache has seen no token.")
        return self.stored

    def form(self, query_heads: int) -> Form:
        """Return the form of new pairs, under ``query_heads`` query heads."""
        if self._form is None:
            raise NothingCompressed(f"layer {self.model_index} of this cache has seen no token.")
        return self._form._replace(query_heads=query_heads)

    @property
    def memory(self) -> Remembered:
        """State of this layer in the reading of the cache's prompt."""
        return self.state.reading.layers[self.ordinal]

    @property
    def fresh(self) -> bool:
        """True if the layer stores this pass only, and not all of its tokens were computed."""
        computed = self.computed
        return computed is not None and computed.inputs == self.seen

    @property
    def softmax_n(self) -> float:
        """The n of softmax-n over the stored pairs. Where tokens were pruned but no pair was
        evicted, the softmax is the model's (0).
        """
        plain = bool(self.state.tokens.dropped) and self.memory.kept is None
        return 0.0 if plain else self.policy.attend.n

    @property
    def armed(self) -> bool:
        """True while the prompt that will be compressed is being read."""
        end = self.state.turn.end
        return end is not None and self.memory.finished < end

    @property
    def expansion(self) -> Expansion | None:
        """The model's function from latents to keys and values per head; None if these are
        stored.
        """
        expansion = self.state.link.expansions.get(self.model_index)
        # some releases have the function, and store what it returns
        return None if self._form is None or self._form.heads > 1 else expansion

    @property
    def expands(self) -> int | None:
        """Index of the layer in the model, if it stores latents."""
        return None if self.expansion is None else self.model_index

    def per_head(self) -> Pairs:
        """Return the pairs that attention reads: the stored ones, or those computed from stored
        latents.
        """
        return self.expanded(self.stored or self.pairs, self.expansion)

    def expanded(self, stored: Pairs, expansion: Expansion | None) -> Pairs:
        """Return the pairs that an expansion computes from stored latents; without one these."""
        if expansion is None:
            return stored
        opened = stored.opened()
        latents, rotary, columns = opened.padded()
        k, v = expansion(latents, rotary)
        if isinstance(opened, DensePairs):
            expanded: DensePairs = ExpandedPairs(k, v, columns if opened.compressed else None)
            return expanded
        columns = columns.expand(k.shape[:3])
        return store(k, v, columns, columns >= 0, self.seen)

    # transformers' interface of a cache layer

    @property
    def keys(self) -> Tensor | None:
        """Keys of the stored slots, padded to the longest head."""
        return None if self.stored is None else self.stored.padded().k

    @keys.setter
    def keys(self, value: Tensor | None) -> None: ...

    @property
    def values(self) -> Tensor | None:
        """Values of the stored slots, padded to the longest head."""
        return None if self.stored is None else self.stored.padded().v

    @values.setter
    def values(self, value: Tensor | None) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the new pairs; return keys and values, marked so that the attention function finds
        this layer.
        """
        if not self.state.link.open:
            self.state.link.refuse()
        self.is_initialized, self.linked = True, False
        k, v, pairs = key_states, value_states, self.stored
        computed = self.computed = None if self.state.reread else self.state.computed
        new = k.shape[2] if computed is None else computed.inputs
        if pairs is not None and pairs.compressed:
            k, v = k.detach(), v.detach()
        end, drafts = None if self.state.reread else self.state.turn.end, None
        if end is not None and self.seen < end < self.seen + new:
            split = k.shape[2] - (self.seen + new - end)
            drafts = self._take_drafts(k[:, :, split:], v[:, :, split:], end)
            k, v = k[:, :, :split], v[:, :, :split]
        if k.shape[2] > 1 and isinstance(pairs, RewrittenPairs):
            self.in_order()
        pairs = self.append(k, v)
        self._collect(k, v)
        keys, values = key_states, value_states
        if drafts is None and isinstance(pairs, DensePairs):
            keys, values = pairs.both()
        keys = keys.view_as(keys)  # a new object: the mark is for this pass only
        setattr(keys, LINK, self)
        return keys, values

    def _collect(self, k: Tensor, v: Tensor) -> None:
        """Note the pass's pairs where a recording collects them."""
        if (collected := self.state.collected) is None or self.state.reread is not None:
            return
        collected.k[self.ordinal], collected.v[self.ordinal] = k.detach(), v.detach()
        if self.expansion is not None:
            collected.expanded[self.ordinal] = self.expansion(k.detach(), v.detach())[0]

    def _take_drafts(self, k: Tensor, v: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Set aside the pairs of draft tokens, which come in the pass that ends the prompt."""
        if self.state.policy.scope == "model":
            raise UnsupportedCache(
                f"{self.state.policy} shares its budget over all layers, or reads the prompt "
                "again, so it compresses after the whole prompt has passed through the model, and "
                "draft tokens arrived in the same pass. Use it without assisted (or prompt lookup) "
                "decoding, or a policy that compresses layer by layer, such as 'snapkv:budget=20%' "
                "or 'keydiff:budget=20%,recent=0.25'."
            )
        self.computed = None if self.computed is None else self.computed.until(end)
        self.drafts = k.detach(), v.detach()
        return self.drafts

    def append(self, k: Tensor, v: Tensor) -> Pairs:
        """Append the pairs of a pass, and advance the layer's pass and token count."""
        new, end = k.shape[2], self.state.turn.end
        if self.computed is not None:
            new = self.computed.inputs
        if self._form is None:
            self._form = Form.of(0, k, v)
        if self.stored is None:
            # a prompt that is compressed while it is read never has all of its pairs stored
            reserved = 0 if end is None or self.policy.when.reads else end
            self.stored = None if self.computed else DensePairs.empty(k, v, max(new, reserved))
        if self.computed is not None:
            self.stored = self._listed(self.computed, k, v)
        elif self.stored is not None:
            if isinstance(self.stored, ModalityPairs) and self.armed:
                # the pairs of earlier passes, whose modality is known by now
                self.stored = self.stored.see(self.state.visual_columns())
            self.stored.append(k, v)
        prompt = self.state.reading.layers[self.ordinal].finished if end is None else end
        self.at = Pass.of(prompt, self.seen, new)
        self.seen += new
        return self.stored or self.pairs

    def _listed(self, computed: Computed, k: Tensor, v: Tensor) -> DensePairs:
        """Return the stored pairs together with those of a pass of which not all tokens were
        computed.
        """
        own, stored = computed.of_heads(k.shape[1], k.device), None
        if self.stored is not None:
            stored = self.stored.opened().padded()
            if is_whole(self.stored) and self.state.tokens.pad is not None:
                padding = stored.columns < self.state.tokens.pad.to(k.device)[:, None, None]
                stored = stored._replace(columns=stored.columns.masked_fill(padding, -1))
        return listed(stored, k, v, own, computed.end)

    def settle(self) -> None:
        """Remove empty slots of rows and heads that store fewer tokens than others. Called after a
        prompt, or a pass of an endless one, of which some tokens were not computed.
        """
        pairs = self.pairs
        if self.state.tokens.dropped and isinstance(pairs, DensePairs) and pairs.mixed:
            k, v, columns = pairs.padded()
            if bool((columns < 0).any()):
                self.stored = store(k, v, columns, columns >= 0, pairs.next_column)

    def get_seq_length(self) -> int:
        """Return the number of tokens seen, kept or not."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of all columns, kept or not, and offset 0."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.15

    def reset(self) -> None:
        """Reset to an empty, armed layer."""
        self._empty()
        if self.ordinal == 0:
            self.state.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the batch: row i becomes row ``beam_idx[i]``."""
        self._take_rows(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies side by side."""
        if self.stored is not None:
            counts = self.stored.counts
            rows = torch.arange(len(counts), device=counts.device)
            self._take_rows(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows by index or boolean mask."""
        self._take_rows(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def _take_rows(self, rows: Tensor) -> None:
        if self.stored is None:
            return
        rows = rows.to(self.stored.counts.device, torch.int64)  # beam search passes int32
        self.stored.take_rows(rows)
        self.memory.take_rows(rows)
        if self.ordinal == 0:
            self.state.take_rows(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest tokens; a positive number is the length to cut down to.

        Raises:
            InvalidInput: they reach into the compressed prompt, whose other tokens are gone.
        """
        count = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.seen - tokens_to_remove)
        if count == 0 or self.stored is None:
            return
        if self.state.policy.when.decodes:
            raise InvalidInput(
                f"tokens cannot be removed under {self.state.policy.when!r}: they have already "
                "changed which pairs are kept. Use when=after_prefill with assisted decoding."
            )
        if not self.stored.crop(count):
            raise InvalidInput(
                f"crop removes {count} tokens, which reaches into the compressed prompt. Only "
                "tokens after the compression can be removed."
            )
        self.seen -= count
        passes = self.state.turn.passes  # a removed pass must not be read again
        remaining = tuple(p for p in passes if p.first + p.length <= self.seen)
        self.state.update_turn(passes=remaining)

    # Stored pairs

    @property
    def nbytes(self) -> int:
        """Bytes of every stored tensor: pairs, and the state of a rule that decodes."""
        return self.pairs.nbytes + self.memory.nbytes

    def refill(self, pairs: Pairs, seen: int, finished: int) -> None:
        """Set pairs that were read elsewhere, in one pass; the prompt ended at ``finished``."""
        self.stored, self.seen, self.is_initialized = pairs, seen, True
        k, v, _ = pairs.padded()
        self._form = Form.of(0, k, v)
        self.memory.finished = finished
        self.full_bytes = len(k) * finished * k.shape[1] * (k.shape[3] + v.shape[3])
        self.full_bytes *= k.element_size()
        end = self.state.turn.end
        self.at = Pass.of(finished if end is None else end, finished, seen - finished)

    def replace_pairs(self, pairs: Pairs) -> None:
        """Replace the stored pairs; the number of tokens seen is unchanged."""
        self.stored = pairs

    def padded(self) -> Padded:
        """Return all stored slots, padded. Layers that store every column share the columns
        tensor.
        """
        pairs, computed = self.stored or self.pairs, self.computed
        if computed is not None and isinstance(pairs, DensePairs) and self.fresh:
            return Padded(pairs.k, pairs.v, computed.of_heads(pairs.k.shape[1], pairs.k.device))
        if not isinstance(pairs, DensePairs) or pairs.compressed:
            return pairs.padded()
        k, v = pairs.both()
        return Padded(k, v, self.state.columns(k))

    def in_order(self) -> None:
        """Sort the pairs, and the state remembered for them, by column."""
        pairs, memory = self.stored, self.memory
        if isinstance(pairs, RewrittenPairs):
            memory.state = {name: pairs.of_slots(t) for name, t in memory.state.items()}
            self.stored = pairs.opened()

    # The policy's part of a pass

    def read(self, layer: Layer) -> None:
        """Pass the layer to the policy, and store the pairs that it keeps: this layer's, or after
        the last one all layers'.
        """
        state, policy = self.state, self.state.policy
        if policy.reads_output_weight:
            heads, size = layer.q.shape[1], layer.per_head.v.shape[3]
            weight = output_weight(state.link.projections, self.model_index, heads, size)
            layer = replace(layer, output_weight=weight)
        seen = self.seen + state.tokens.forgotten
        form = self.form(layer.q.shape[1])
        self.full_bytes = uncompressed_bytes(form, layer.k.shape[0], seen)
        stored = (self.stored or self.pairs).counts
        for ordinal, kept in state.reading.read(layer, self.at, stored).items():
            state.layers[ordinal].keep(kept)
        if policy.when.decodes:
            _ = state.pad  # sync with the device now, not while decoding

    def finish(self) -> None:
        """Store the pairs that the policy keeps, after the prompt has been read a second time."""
        k, v, _ = self.padded()
        expanded = None if self.expansion is None else self.expansion(k, v)
        kept_by_layer = self.state.reading.read_again(self.ordinal, k, v, expanded)
        for ordinal, kept in kept_by_layer.items():
            self.state.layers[ordinal].keep(kept)

    def keep(self, kept: Kept) -> None:
        """Replace the stored pairs by the kept ones."""
        pairs, noted = self.stored or self.pairs, self.state.noted
        policy = self.state.policy
        if kept.is_stored:
            k, v, _ = pairs.padded()
            kept = replace(kept, k=k, v=v, is_stored=False)
        if noted is not None:
            noted[self.ordinal] = kept
        if self.state.link.keeps_scores and kept.scores is not None:
            slots = to_the_right(kept.mask, int(kept.counts.max()))
            columns = pairs.columns.masked_fill(~kept.mask, -1)
            self.ranks = columns.gather(-1, slots), kept.scores.gather(-1, slots)
        if not pairs.compressed:
            columns = self.state.columns(kept.mask)
            new: Pairs = store(kept.k, kept.v, columns, kept.mask, self.seen, kept.counts)
        elif isinstance(policy.merge, NoMerge) and isinstance(pairs, Coded):
            new = pairs.only(kept.mask)
        else:
            new = store(kept.k, kept.v, pairs.columns, kept.mask, self.seen, kept.counts)
        if (visual := policy.stores_by_modality) is not None:
            new = visual.of_modality(new, self.state.visual_columns())
        elif not isinstance(policy.store, FullPrecision):  # full precision returns them unchanged
            new = policy.store(new)
        self.stored = new
        if policy.beyond:
            self.bound_room()

    def bound_room(self, more: int = 0) -> None:
        """Limit the room for new pairs under a budget in bytes that answers must respect, to the
        pairs that may come before the layer is compressed again: ``more``, and what the rule
        allows.
        """
        allowed = self.policy.beyond
        if allowed and self.policy.amount.kind == "bytes" and isinstance(self.stored, Roomy):
            self.stored.bound(more + allowed)

    def cut_to_bytes(self) -> None:
        """Cut the room of a prompt that stays uncompressed to what its budget in bytes allows."""
        tokens, pairs = self.memory.tokens, self.pairs
        if self.policy.amount.kind == "bytes" and tokens is not None and is_whole(pairs):
            pairs.cut()
            self.bound_room(max(0, int(tokens.min()) - pairs.size))

    def stats(self) -> LayerStats:
        """Return the statistics of the prompt; call it right after the pass that completed it."""
        pairs, finished = self.pairs, self.memory.finished
        kept = pairs.counts - (self.seen - finished)
        padding = self.state.tokens.padding(kept)
        if not pairs.compressed:
            kept = kept - padding[:, None]
        dropped = self.state.tokens.dropped_before(self.model_index, self.seen)
        model_bits = 8 * self.form(kept.shape[1]).dtype.itemsize
        never = torch.zeros_like(padding) if dropped is None else dropped.sum(-1).to(kept)
        return LayerStats(
            layer=self.model_index,
            kept=kept,
            seen=finished + self.state.tokens.forgotten,
            bytes_before=self.full_bytes,
            bytes_after=self.nbytes,
            compressed=pairs.compressed,
            seconds=self.watch.seconds,
            dropped=None if dropped is None else never,
            evicted=(finished - padding - never)[:, None] - kept,
            bits=bits_held(pairs, model_bits),
            model_bits=model_bits,
        )

    # Probe passes

    def copy_pairs(self) -> None:
        """Copy the pairs before a probe pass, which appends to the copy."""
        pairs = self.pairs
        self.stored = copy(pairs) if is_whole(pairs) else pairs.fork()

    def cut(self, columns: int) -> None:
        """Cut the pairs to the first ``columns`` tokens, in a probe pass."""
        k, v, _ = self.padded()
        self.stored = DensePairs(k[:, :, :columns].clone(), v[:, :, :columns].clone())
        self.seen = columns

    def restore_pairs(self, pairs: Pairs, seen: int) -> None:
        """Restore the pairs and the number of tokens seen, after a probe pass."""
        self.stored, self.seen = pairs, seen


def is_whole(pairs: Pairs) -> TypeGuard[DensePairs]:
    """Return True if the pairs are of every column: slot i is column i."""
    return isinstance(pairs, DensePairs) and not pairs.compressed
