"""A cache layer as transformers sees it, and the pairs that it holds under a policy.

``get_seq_length`` is the true number of tokens seen, so rotary positions, masks and input slicing
stay those of the full cache. How a pass attends to what is held is in ``ways.py``.
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
    Form,
    ModalityPairs,
    Padded,
    Pairs,
    RewrittenPairs,
    Roomy,
    bits_held,
    listed,
    store,
)
from foveate.compression.between_passes import Pass, Remembered
from foveate.compression.pipeline import Kept
from foveate.compression.shedding import to_the_right
from foveate.errors import InvalidInput, NothingCompressed, UnsupportedCache
from foveate.hf.attention.computed import Computed
from foveate.hf.layer.projection import output_weight
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.stats import LayerStats, Stopwatch
from foveate.hf.model.internals import DynamicLayer
from foveate.policies.policy import Policy
from foveate.policies.protocols import FullPrecision, NoMerge

LINK = "_foveate"
"""The attribute by which the keys that a layer returns lead back to it."""


class FoveateLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """The pairs of one layer: ``ordinal`` among the compressed layers, ``model_index`` among all of
    the model's.
    """

    is_croppable = True

    def __init__(self, state: CacheState, model_index: int, ordinal: int):
        self.state, self.model_index, self.ordinal = state, model_index, ordinal
        state.layers.append(self)  # ordinal after ordinal
        self._empty()
        super().__init__()  # type: ignore[no-untyped-call]

    def _empty(self) -> None:
        self.held: Pairs | None = None
        self.seen = 0
        self.at = Pass.of(0, 0, 0)  # where the latest pass stands
        self.linked = True  # whether the attention function found this layer
        self.drafts: tuple[Tensor, Tensor] | None = None  # pairs beyond the prompt, same pass
        self.computed: Computed | None = None  # of this pass, where tokens were dropped
        self.attended: Pairs | None = None  # in this pass, if other layers read these, too
        self.watch = Stopwatch()
        self.full_bytes = 0
        self.ranks: tuple[Tensor, Tensor] | None = None  # columns and scores kept, if requested
        self._sizes: tuple[int, int, int, torch.dtype] | None = None  # of the pairs that come
        self.is_initialized = False

    @property
    def policy(self) -> Policy:
        """What is kept, with the shares that its budget leaves open written out."""
        return self.state.policy

    @property
    def pairs(self) -> Pairs:
        """The pairs ``held``; there are none before the first pass."""
        if self.held is None:
            raise NothingCompressed(f"layer {self.model_index} of this cache has seen no token.")
        return self.held

    def form(self, query_heads: int) -> Form:
        """Of the pairs that come, under so many query heads."""
        if self._sizes is None:
            raise NothingCompressed(f"layer {self.model_index} of this cache has seen no token.")
        heads, key, value, dtype = self._sizes
        return Form(heads, query_heads, key, value, dtype)

    @property
    def memory(self) -> Remembered:
        """What the reading of this cache's prompt remembers of this layer."""
        return self.state.reading.layers[self.ordinal]

    @property
    def fresh(self) -> bool:
        """Whether nothing is held but the pairs of this pass, of which not all were computed."""
        computed = self.computed
        return computed is not None and computed.inputs == self.seen

    @property
    def softmax_n(self) -> float:
        """The n of the softmax over what is held. Where nothing was evicted, and some tokens were
        never computed, the softmax is the model's.
        """
        plain = bool(self.state.tokens.dropped) and self.memory.kept is None
        return 0.0 if plain else self.policy.attend.n

    @property
    def armed(self) -> bool:
        """True while the prompt that will be compressed is being read."""
        end = self.state.turn.end
        return end is not None and self.memory.finished < end

    # What transformers asks of a cache layer

    @property
    def keys(self) -> Tensor | None:
        """Keys of the slots held, padded to the longest head."""
        return None if self.held is None else self.held.padded().k

    @keys.setter
    def keys(self, value: Tensor | None) -> None: ...

    @property
    def values(self) -> Tensor | None:
        """Values of the slots held, padded to the longest head."""
        return None if self.held is None else self.held.padded().v

    @values.setter
    def values(self, value: Tensor | None) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Takes the new pairs; the keys returned lead the attention function back here."""
        if not self.state.link.open:
            self.state.link.refuse()
        self.is_initialized, self.linked = True, False
        k, v, pairs = key_states, value_states, self.held
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
        if (made := self.state.made) is not None and self.state.reread is None:
            made.k[self.ordinal], made.v[self.ordinal] = k.detach(), v.detach()
        keys, values = key_states, value_states
        if drafts is None and isinstance(pairs, DensePairs):
            keys, values = pairs.both()
        keys = keys.view_as(keys)  # the mark is for this pass alone
        setattr(keys, LINK, self)
        return keys, values

    def _take_drafts(self, k: Tensor, v: Tensor, end: int) -> tuple[Tensor, Tensor]:
        """Put aside the pairs of drafted tokens, which come in the pass that ends the prompt."""
        if self.state.policy.scope == "model":
            raise UnsupportedCache(
                f"{self.state.policy} shares its budget over all layers, or reads the prompt "
                "again, so it compresses after the whole prompt has passed through the model, and "
                "drafted tokens arrived in the same pass. Use it without assisted (or prompt "
                "lookup) decoding, or a policy that compresses layer by layer, such as "
                "'snapkv:budget=20%' or 'keydiff:budget=20%,recent=0.25'."
            )
        self.computed = None if self.computed is None else self.computed.until(end)
        self.drafts = k.detach(), v.detach()
        return self.drafts

    def append(self, k: Tensor, v: Tensor) -> Pairs:
        """Takes in the pairs of a pass: from here on, this is where the latest one stands."""
        new, end = k.shape[2], self.state.turn.end
        if self.computed is not None:
            new = self.computed.inputs
        if self._sizes is None:
            self._sizes = k.shape[1], k.shape[3], v.shape[3], k.dtype
        if self.held is None:
            # a prompt compressed on its way is never whole
            whole = 0 if end is None or self.policy.when.reads else end
            self.held = None if self.computed else DensePairs.empty(k, v, max(new, whole))
        if self.computed is not None:
            self.held = self._listed(self.computed, k, v)
        elif self.held is not None:
            if isinstance(self.held, ModalityPairs) and self.armed:  # what came in a pass before
                self.held = self.held.see(self.state.visual_columns())
            self.held.append(k, v)
        prompt = self.state.reading.layers[self.ordinal].finished if end is None else end
        self.at = Pass.of(prompt, self.seen, new)
        self.seen += new
        return self.held or self.pairs

    def _listed(self, computed: Computed, k: Tensor, v: Tensor) -> DensePairs:
        """What is held, and the pairs of a pass of which not all tokens were computed."""
        own, held = computed.of_heads(k.shape[1], k.device), None
        if self.held is not None:
            held = self.held.opened().padded()
            if is_whole(self.held) and self.state.tokens.pad is not None:
                padding = held.columns < self.state.tokens.pad.to(k.device)[:, None, None]
                held = held._replace(columns=held.columns.masked_fill(padding, -1))
        return listed(held, k, v, own, computed.end)

    def settle(self) -> None:
        """Once a prompt, or a pass of one that never ends, has been read of which some tokens were
        not computed: holds no empty slots, which rows and heads have that keep fewer than others.
        """
        pairs = self.pairs
        if self.state.tokens.dropped and isinstance(pairs, DensePairs) and pairs.mixed:
            k, v, columns = pairs.padded()
            if bool((columns < 0).any()):
                self.held = store(k, v, columns, columns >= 0, pairs.next_column)

    def get_seq_length(self) -> int:
        """Tokens seen, whatever is kept of them."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks span all columns."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    get_max_cache_shape = get_max_length  # the name before transformers 5.15

    def reset(self) -> None:
        """Back to an empty, armed layer."""
        self._empty()
        if self.ordinal == 0:
            self.state.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes row ``beam_idx[i]``."""
        self._take_rows(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row ``repeats`` times in a row."""
        if self.held is not None:
            counts = self.held.counts
            rows = torch.arange(len(counts), device=counts.device)
            self._take_rows(rows.repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows."""
        self._take_rows(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def _take_rows(self, rows: Tensor) -> None:
        if self.held is None:
            return
        rows = rows.to(self.held.counts.device, torch.int64)  # beam search has them of 32 bits
        self.held.take_rows(rows)
        self.memory.take_rows(rows)
        if self.ordinal == 0:
            self.state.take_rows(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest tokens; a positive number is the length to cut down to.

        Raises:
            InvalidInput: they reach into the compressed prompt, whose other tokens are gone.
        """
        count = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.seen - tokens_to_remove)
        if count == 0 or self.held is None:
            return
        if self.state.policy.when.decodes:
            raise InvalidInput(
                f"tokens cannot be taken back under {self.state.policy.when!r}: they have already "
                "changed what is kept. Use when=after_prefill with assisted decoding."
            )
        if not self.held.crop(count):
            raise InvalidInput(
                f"crop takes back {count} tokens, which reaches into the compressed prompt. "
                "Only tokens that came after the compression can be taken back."
            )
        self.seen -= count
        passes = self.state.turn.passes  # what was taken back is not read again
        left = tuple(one for one in passes if one.first + one.length <= self.seen)
        self.state.update_turn(passes=left)

    # What is held

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held: pairs, and what a rule that decodes remembers."""
        return self.pairs.nbytes + self.memory.nbytes

    def refill(self, pairs: Pairs, seen: int, finished: int) -> None:
        """Takes over pairs that were read elsewhere, in one pass that ended there."""
        self.held, self.seen, self.is_initialized = pairs, seen, True
        k, v, _ = pairs.padded()
        self._sizes = k.shape[1], k.shape[3], v.shape[3], k.dtype
        self.memory.finished = finished
        end = self.state.turn.end
        self.at = Pass.of(finished if end is None else end, finished, seen - finished)

    def put(self, pairs: Pairs) -> None:
        """Holds these pairs from now on; nothing has been read."""
        self.held = pairs

    def padded(self) -> Padded:
        """All slots held; those of layers that hold every column have the very same columns."""
        pairs, computed = self.held or self.pairs, self.computed
        if computed is not None and isinstance(pairs, DensePairs) and self.fresh:
            return Padded(pairs.k, pairs.v, computed.of_heads(pairs.k.shape[1], pairs.k.device))
        if not isinstance(pairs, DensePairs) or pairs.compressed:
            return pairs.padded()
        k, v = pairs.both()
        return Padded(k, v, self.state.columns(k))

    def in_order(self) -> None:
        """Holds its pairs, and what is remembered of them, in the order of their columns."""
        pairs, memory = self.held, self.memory
        if isinstance(pairs, RewrittenPairs):
            memory.state = {name: pairs.of_slots(t) for name, t in memory.state.items()}
            self.held = pairs.opened()

    # The policy's part of a pass

    def read(self, layer: Layer) -> None:
        """Shows what has been read to the policy, and holds what it keeps: of this layer, or of all
        of them after the last one.
        """
        state, policy = self.state, self.state.policy
        if policy.reads_output_weight:
            heads, size = layer.q.shape[1], layer.v.shape[3]
            weight = output_weight(state.link.projections, self.model_index, heads, size)
            layer = replace(layer, output_weight=weight)
        whole = self.seen + state.tokens.forgotten
        rows, heads, _, key = layer.k.shape
        pair = heads * (key + layer.v.shape[3]) * layer.k.element_size()
        self.full_bytes = rows * whole * pair
        stored = (self.held or self.pairs).counts
        for ordinal, kept in state.reading.read(layer, self.at, stored).items():
            state.layers[ordinal].hold(kept)
        if policy.when.decodes:
            _ = state.pad  # asked now, and not while decoding

    def finish(self) -> None:
        """Holds what the policy keeps now that the prompt has been read again."""
        k, v, _ = self.padded()
        for ordinal, kept in self.state.reading.read_again(self.ordinal, k, v).items():
            self.state.layers[ordinal].hold(kept)

    def hold(self, kept: Kept) -> None:
        """Holds the kept pairs instead of all."""
        pairs, noted = self.held or self.pairs, self.state.noted
        policy = self.state.policy
        if kept.held:
            k, v, _ = pairs.padded()
            kept = replace(kept, k=k, v=v, held=False)
        if noted is not None:
            noted[self.ordinal] = kept
        if self.state.link.keeps_scores and kept.scores is not None:
            slots = to_the_right(kept.mask, int(kept.counts.max()))
            columns = pairs.columns.masked_fill(~kept.mask, -1)
            self.ranks = columns.gather(-1, slots), kept.scores.gather(-1, slots)
        if not pairs.compressed:
            columns = self.state.columns(kept.mask)
            left: Pairs = store(kept.k, kept.v, columns, kept.mask, self.seen, kept.counts)
        elif isinstance(policy.merge, NoMerge) and isinstance(pairs, Coded):
            left = pairs.only(kept.mask)
        else:
            left = store(kept.k, kept.v, pairs.columns, kept.mask, self.seen, kept.counts)
        if (visual := policy.stores_by_modality) is not None:
            left = visual.of_modality(left, self.state.visual_columns())
        elif not isinstance(policy.store, FullPrecision):  # which would return the same
            left = policy.store(left)
        self.held = left
        if policy.beyond:
            self.bound_room()

    def bound_room(self, more: int = 0) -> None:
        """Under a budget in bytes that an answer is to stay within, there is room for the pairs
        alone that may come before the layer is compressed again: ``more`` and what the rule allows.
        """
        allowed = self.policy.beyond
        if allowed and self.policy.amount.kind == "bytes" and isinstance(self.held, Roomy):
            self.held.bound(more + allowed)

    def cut_to_bytes(self) -> None:
        """A prompt that has been read and stays whole has no more room than its bytes allow."""
        tokens, pairs = self.memory.tokens, self.pairs
        if self.policy.amount.kind == "bytes" and tokens is not None and is_whole(pairs):
            pairs.cut()
            self.bound_room(max(0, int(tokens.min()) - pairs.size))

    def stats(self) -> LayerStats:
        """What was kept of the prompt; call it right after the pass that completed it."""
        pairs, finished = self.pairs, self.memory.finished
        kept = pairs.counts - (self.seen - finished)
        padding = self.state.tokens.padding(kept)
        if not pairs.compressed:
            kept = kept - padding[:, None]
        dropped = self.state.tokens.dropped_before(self.model_index, self.seen)
        made = 8 * self.form(kept.shape[1]).dtype.itemsize
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
            bits=bits_held(pairs, made),
            made=made,
        )

    # Passes that do not stay

    def use_copy(self) -> None:
        """Before such a pass: what is held is not touched."""
        pairs = self.pairs
        self.held = copy(pairs) if is_whole(pairs) else pairs.fork()

    def cut(self, columns: int) -> None:
        """In one: as if so many tokens had been read."""
        k, v, _ = self.padded()
        self.held = DensePairs(k[:, :, :columns].clone(), v[:, :, :columns].clone())
        self.seen = columns

    def give_back(self, pairs: Pairs, seen: int) -> None:
        """After it: these pairs are held, of so many tokens."""
        self.held, self.seen = pairs, seen


def is_whole(pairs: Pairs) -> TypeGuard[DensePairs]:
    """Whether they are of every column, slot i of column i."""
    return isinstance(pairs, DensePairs) and not pairs.compressed
