"""A cache layer that keeps what its policy keeps, and the attention over it.

The exact form: ``get_seq_length`` is the true number of tokens seen, so rotary positions, masks and
input slicing stay those of the full cache; the attention function gathers the mask's columns
through the original column of each slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeGuard

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.backends.hf.attention.by_products import (
    NOTHING,
    Attended,
    ModelAttention,
    Output,
    Wanted,
)
from foveate.backends.hf.attention.dispatch import Queries, attended, wanted
from foveate.backends.hf.attention.gradients import refused
from foveate.backends.hf.internals import DynamicLayer
from foveate.backends.hf.projection import output_weight
from foveate.backends.hf.state import Again, CacheState
from foveate.backends.hf.stats import LayerStats, Stopwatch
from foveate.core.layer import Layer
from foveate.core.pipeline import Kept, bytes_of_pairs
from foveate.core.policy import Policy
from foveate.core.protocols import NoMerge, Pruning
from foveate.core.reading import Pass, Remembered
from foveate.core.slots import Slots
from foveate.core.storage import Coded, DensePairs, Padded, Pairs, RewrittenPairs, rewritten
from foveate.errors import InvalidInput, NothingCompressed, UnsupportedCache
from foveate.ops.column_sums import attention_of_one

LINK = "_foveate"
"""The attribute by which the keys that a layer returns lead back to it."""


class FoveateLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a cache under a policy: ``ordinal`` among the compressed layers, ``model_index``
    among all of the model's.
    """

    is_croppable = True

    def __init__(self, state: CacheState, model_index: int, ordinal: int):
        self.state, self.model_index, self.ordinal = state, model_index, ordinal
        state.layers.append(self)  # ordinal after ordinal
        self._empty()
        super().__init__()  # type: ignore[no-untyped-call]

    def _empty(self) -> None:
        self._pairs: Pairs | None = None
        self.seen = 0
        self.linked = True  # whether the attention function found this layer
        self.late: tuple[Tensor, Tensor] | None = None  # pairs beyond the prompt, same pass
        self._attended: Pairs | None = None  # in this pass, if other layers read these, too
        self.watch = Stopwatch()
        self.full_bytes = 0
        self.token_bytes = 0  # of one token's pairs
        self.is_initialized = False

    @property
    def pairs(self) -> Pairs:
        """The pairs held; there are none before the first pass."""
        if self._pairs is None:
            raise NothingCompressed(f"layer {self.model_index} of this cache has seen no token.")
        return self._pairs

    @property
    def policy(self) -> Policy:
        """The cache's policy."""
        return self.state.policy

    @property
    def memory(self) -> Remembered:
        """What the reading of this cache's prompt remembers of this layer."""
        return self.state.reading.layers[self.ordinal]

    @property
    def at(self) -> Pass:
        """Where the latest pass stands."""
        return Pass(self.seen, self.state.prompt_end)

    @property
    def armed(self) -> bool:
        """True while the prompt that will be compressed is being read."""
        return self.memory.in_prompt(self.at)

    # What transformers asks of a cache layer

    @property
    def keys(self) -> Tensor | None:
        """Keys of the slots held, padded to the longest head."""
        return None if self._pairs is None else self._pairs.padded().k

    @keys.setter
    def keys(self, value: Tensor | None) -> None: ...

    @property
    def values(self) -> Tensor | None:
        """Values of the slots held, padded to the longest head."""
        return None if self._pairs is None else self._pairs.padded().v

    @values.setter
    def values(self, value: Tensor | None) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Takes the new pairs; the keys returned lead the attention function back here."""
        self.state.link.check()
        self.is_initialized, self.linked = True, False
        k, v = key_states, value_states
        if self._pairs is not None and not is_whole(self._pairs):
            k, v = k.detach(), v.detach()
        end = self.state.prompt_end
        if end is not None and self.armed and self.seen < end < self.seen + k.shape[2]:
            self._refuse_early_drafts()
            split = end - self.seen
            self.late = k[:, :, split:].detach(), v[:, :, split:].detach()
            k, v = k[:, :, :split], v[:, :, :split]
        if k.shape[2] > 1:
            self.in_order()
        self._append(k, v)
        keys, values = key_states, value_states
        if self.late is None and isinstance(self.pairs, DensePairs):
            keys, values = self.pairs.k, self.pairs.v
        keys = keys.view_as(keys)  # the mark is for this pass alone
        setattr(keys, LINK, self)
        return keys, values

    def _refuse_early_drafts(self) -> None:
        if self.state.policy.scope == "model":
            raise UnsupportedCache(
                f"{self.state.policy} shares its budget over all layers, or reads the prompt "
                "again, so it compresses after the whole prompt has passed through the model, and "
                "drafted tokens arrived in the same pass. Use it without assisted (or prompt "
                "lookup) decoding."
            )

    def _append(self, k: Tensor, v: Tensor) -> None:
        if self._pairs is None:
            # a prompt compressed on its way is never whole
            whole = 0 if self.policy.when.reads else self.state.prompt_end or 0
            self.token_bytes = bytes_of_pairs(k, v)
            self._pairs = DensePairs.empty(k, v, max(k.shape[2], whole))
        self._pairs.append(k, v)
        self.seen += k.shape[2]

    def get_seq_length(self) -> int:
        """Tokens seen, whatever is kept of them."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks span all columns."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def get_max_cache_shape(self) -> int:
        """No limit (the name before transformers 5.15)."""
        return -1

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
        if self._pairs is not None:
            self._take_rows(torch.arange(self._pairs.counts.shape[0]).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows."""
        self._take_rows(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def _take_rows(self, rows: Tensor) -> None:
        if self._pairs is None:
            return
        rows = rows.to(self._pairs.counts.device)
        self._pairs.take_rows(rows)
        self.memory.take_rows(rows)
        if self.ordinal == 0:
            self.state.take_rows(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest tokens; a positive number is the length to cut down to.

        Raises:
            InvalidInput: they reach into the compressed prompt, whose other tokens are gone.
        """
        count = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.seen - tokens_to_remove)
        if count == 0 or self._pairs is None:
            return
        if self.state.policy.when.decodes:
            raise InvalidInput(
                f"tokens cannot be taken back under {self.state.policy.when!r}: they have already "
                "changed what is kept. Use when=after_prefill with assisted decoding."
            )
        if not self._pairs.crop(count):
            raise InvalidInput(
                f"crop takes back {count} tokens, which reaches into the compressed prompt. "
                "Only tokens that came after the compression can be taken back."
            )
        self.seen -= count
        state = self.state  # what was taken back is not read again
        state.passes = [one for one in state.passes if one.first + one.length <= self.seen]

    # Attention

    def attend(
        self, attention: ModelAttention, query: Tensor, own_mask: Any, scale: float
    ) -> Output:
        """Attention over what is held; then, at the prompt's end, compression. ``own_mask`` is what
        the model's attention takes.
        """
        self.linked, whole = True, is_whole(self.pairs)
        b, m, n = query.shape[0], query.shape[2], self.seen
        n += 0 if self.late is None else self.late[0].shape[2]
        mask = self.state.over_columns(own_mask, b, m, n)
        if self.late is None:
            out, weights = self._read(self._queries(attention, query, own_mask, mask, scale))
            return out if whole else refused(out), weights
        late, self.late = self.late, None
        split = m - late[0].shape[2]
        cut = None if mask is None else mask[:, :, :split, : self.seen]
        rest = None if mask is None else mask[:, :, split:]
        attention = attention.with_masks()
        before, _ = self._read(self._queries(attention, query[:, :, :split], cut, cut, scale))
        self._append(*late)
        queries = self._queries(attention, query[:, :, split:], rest, rest, scale)
        after = attended(queries, self.pairs, self.policy.attend.n)
        return refused(torch.cat([before, after.output], dim=1)), None

    def lend(
        self,
        attention: ModelAttention,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        own_mask: Any,
        scale: float,
    ) -> Output:
        """Attention of another layer of the model that has no pairs of its own and reads these, to
        what they were when this one attended. The policy goes by this layer's queries.
        """
        whole = self._attended is None or is_whole(self._attended)
        if whole and keys.shape[2] == self.seen:
            return attention.plain(query, keys, values, own_mask)
        if self._attended is None or self._attended.counts.shape[0] != query.shape[0]:
            raise UnsupportedCache(
                f"layer {self.model_index} is read by other layers, and drafted tokens arrived in "
                "the pass that completes its prompt. Use this model without assisted decoding."
            )
        mask = self.state.over_columns(own_mask, query.shape[0], query.shape[2], self.seen)
        queries = self._queries(attention, query, own_mask, mask, scale)
        out = attended(queries, self._attended, self.policy.attend.n)
        return refused(out.output), out.weights

    def _read(self, queries: Queries) -> Output:
        query, rule = queries.q, self.policy.when
        if self.state.again is not None:
            out = attended(queries, self.pairs, 0.0)
            self._show_again(queries, self.state.again)
            return out.output, out.weights
        if self.state.lends:
            self._attended = self._pairs
        in_prompt = self.armed
        if not in_prompt and (held := self._to_rewrite(queries)) is not None:
            return self._rewrite(held, queries), None
        if in_prompt or (rule.decodes and not isinstance(rule, Pruning)):
            stock = torch.is_grad_enabled() and query.requires_grad
            ours = queries.attention.is_sdpa and in_prompt and not stock and is_whole(self.pairs)
            asked = self._wanted(queries) if ours else NOTHING
            out = attended(queries, self.pairs, self.policy.attend.n, asked)
            self.in_order()
            self._show(queries, out)
        else:
            out = attended(queries, self.pairs, self.policy.attend.n)
            if rule.decodes:
                self._prune()
        return out.output, out.weights

    def _queries(
        self,
        attention: ModelAttention,
        q: Tensor,
        own_mask: Any,
        mask: Tensor | None,
        scale: float,
    ) -> Queries:
        seen, state = self.seen, self.state
        shape = (q.shape[0], q.shape[2], seen)
        facts = partial(state.facts, mask, shape, q.device)
        return Queries(q, own_mask, mask, scale, attention, seen, facts)

    # The policy's part; numbers decide what happens, so there is nothing to trace

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _wanted(self, queries: Queries) -> Wanted:
        """What the attention is to make on its way."""
        with self.watch.running(queries.q.device):
            k, _, columns = self._padded()
            slots, groups = self._slots(queries, columns), queries.q.shape[1] // k.shape[1]
            to_read = self.memory.to_read(self.at)
            return wanted(self.policy, slots, queries.q, groups, self.at, to_read)

    # Decoding in place

    def _to_rewrite(self, queries: Queries) -> DensePairs | RewrittenPairs | None:
        """The pairs, where this token's makes one of each head leave, wherever it stands."""
        pairs = self.pairs
        if not self.state.rewrites or not isinstance(pairs, DensePairs | RewrittenPairs):
            return None
        kept = self.memory.kept_by_each
        if kept is None or pairs.longest != kept + 1 or not pairs.compressed:
            return None
        plain = queries.attention.is_sdpa and queries.sees_all and not self.state.lends
        return pairs if plain else None

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _rewrite(self, held: DensePairs | RewrittenPairs, queries: Queries) -> Tensor:
        """Attention, whose weights say which pair of each head leaves."""
        pairs = self._pairs = rewritten(held)
        out, paid = attention_of_one(queries.q, pairs.k, pairs.v, queries.scale)
        with torch.no_grad():
            layer = self._layer(queries, pairs.k, pairs.v, pairs.unordered)
            layer = replace(layer, column_sums=paid.detach())
            pairs.vacate(self.state.reading.one_out(layer, self.at))
        return out.to(queries.q.dtype).transpose(1, 2)

    def in_order(self) -> None:
        """Holds its pairs, and what is remembered of them, in the order of their columns."""
        pairs, memory = self._pairs, self.memory
        if isinstance(pairs, RewrittenPairs):
            memory.state = {name: pairs.of_slots(t) for name, t in memory.state.items()}
            self._pairs = pairs.opened()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _show(self, queries: Queries, out: Attended) -> None:
        """Shows the pass to the policy, and holds what it keeps."""
        with self.watch.running(queries.q.device):
            k, v, columns = self._padded()
            layer = self._layer(queries, k, v, columns)
            self.read(replace(layer, column_sums=out.column_sums, window_sums=out.window_sums))

    def _layer(self, queries: Queries, k: Tensor, v: Tensor, columns: Tensor) -> Layer:
        """What the policy sees of a pass."""
        return Layer(
            q=queries.q.detach(),
            k=k.detach(),
            v=v.detach(),
            slots=self._slots(queries, columns),
            scale=queries.scale,
            ordinal=self.ordinal,
            model_index=self.model_index,
            depth=self.state.depth,
        )

    # Reading the prompt again: what it appends does not stay

    def borrow(self) -> None:
        """Before such a pass: what is held is not touched."""
        pairs = self.pairs
        self._pairs = copy(pairs) if is_whole(pairs) else pairs.fork()

    def give_back(self, pairs: Pairs, seen: int) -> None:
        """After it: these pairs are held, of so many tokens."""
        self._pairs, self.seen = pairs, seen

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _show_again(self, queries: Queries, again: Again) -> None:
        """Shows the pass to the policy, which sees the prompt's slots before the pass's own."""
        unread = self.memory.unread
        if unread is None or again.order is None:
            return
        k, v, _ = self._padded()
        pos = unread.slots.pos
        order = again.order.to(pos.device)
        own = torch.where(order < 0, -1, order + unread.slots.lengths[:, None])
        beside = own[:, None].expand(*pos.shape[:2], -1)
        self.state.reading.again(
            replace(
                unread,
                q=queries.q.detach(),
                k=k.detach(),
                v=v.detach(),
                slots=Slots(pos=torch.cat([pos, beside.to(pos)], dim=-1), q_pos=own),
            )
        )

    def finish(self) -> None:
        """Holds what the policy keeps now that the prompt has been read again."""
        k, v, _ = self._padded()
        self._hold_each(self.state.reading.read_again(self.ordinal, k, v))

    def _padded(self) -> Padded:
        """All slots held."""
        pairs = self.pairs
        return Padded(pairs.k, pairs.v, self._columns) if is_whole(pairs) else pairs.padded()

    @property
    def _columns(self) -> Int[Tensor, "b h n"]:
        """Of each slot held; layers that hold every column have the very same tensor."""
        pairs = self.pairs
        return self.state.slots.columns(pairs.k) if is_whole(pairs) else pairs.columns

    def _slots(self, queries: Queries, columns: Int[Tensor, "b h n"]) -> Slots:
        """The slots as the policy sees them: one object for layers that hold every column."""
        state, span = self.state, (self.seen - queries.q.shape[2], self.seen)
        slots = state.slots.of(
            columns, not is_whole(self.pairs), span, queries.facts(), state.images(), queries.mask
        )
        return state.reading.with_budget(slots, self.at, self.ordinal, self.token_bytes)

    def read(self, layer: Layer) -> None:
        """Shows what has been read to the policy, and holds what it keeps: of this layer, or of all
        of them after the last one.
        """
        if self.policy.reads_output_weight:
            heads, size = layer.q.shape[1], layer.v.shape[3]
            weight = output_weight(self.state.link.projections, self.model_index, heads, size)
            layer = replace(layer, output_weight=weight)
        self.full_bytes = layer.k.shape[0] * self.seen * bytes_of_pairs(layer.k, layer.v)
        self._hold_each(self.state.reading.read(layer, self.at, self.pairs.counts))
        if self.policy.when.decodes:
            _ = self.state.pad  # asked now, and not while decoding

    def _hold_each(self, found: Mapping[int, Kept]) -> None:
        for ordinal, kept in found.items():
            self.state.layers[ordinal].hold(kept)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _prune(self) -> None:
        """Keeps the slots that the rule says, without looking at anything but their number."""
        state = self.state
        if state.pads is None or self._left_in_place():
            return
        lengths = self.seen - state.pads.to(self.pairs.counts.device)
        with self.watch.running(lengths.device):
            kept = state.reading.prune(self.ordinal, self.at, lengths, self.pairs)
            if kept is not None:
                self.hold(kept)

    def _left_in_place(self) -> bool:
        """Whether at most one pair leaves each head, the same in all; then it has."""
        state, pairs = self.state, self.pairs
        if state.pad is None or not isinstance(pairs, DensePairs | RewrittenPairs):
            return False
        leave = state.reading.leave(self.ordinal, self.at, state.pad, pairs.longest)
        if not leave:
            return leave is not None
        if len(leave) > 1 or state.lends or not self.policy.store.exact:
            return False
        pairs = self._pairs = rewritten(pairs)
        pairs.vacate_nth(leave.start)
        self.memory.state = {}  # which nobody reads any more
        return True

    # What is held

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held: pairs, and what a rule that decodes remembers."""
        return self.pairs.nbytes + self.memory.nbytes

    def hold(self, kept: Kept) -> None:
        """Holds the kept pairs instead of all."""
        policy, pairs = self.policy, self.pairs
        if self.state.noted is not None:
            self.state.noted[self.ordinal] = kept
        if isinstance(pairs, Coded) and isinstance(policy.merge, NoMerge):
            self._pairs = policy.store(pairs.only(kept.mask))
        else:
            self._pairs = policy.store(kept.store(self._columns, first=self.seen))

    def refill(self, pairs: Pairs, seen: int, finished: int) -> None:
        """Takes over pairs that were read elsewhere."""
        self._pairs, self.seen, self.is_initialized = pairs, seen, True
        self.memory.finished = finished

    def stats(self) -> LayerStats:
        """What was kept of the prompt; call it right after the pass that completed it."""
        pairs, finished = self.pairs, self.memory.finished
        kept = pairs.counts - (self.seen - finished)
        if not pairs.compressed and self.state.pads is not None:
            kept = kept - self.state.pads.to(kept.device)[:, None]
        return LayerStats(
            layer=self.model_index,
            kept=kept,
            seen=finished,
            bytes_before=self.full_bytes,
            bytes_after=self.nbytes,
            compressed=pairs.compressed,
            seconds=self.watch.seconds,
        )


def is_whole(pairs: Pairs) -> TypeGuard[DensePairs]:
    """Whether they are of every column, slot i of column i."""
    return isinstance(pairs, DensePairs) and not pairs.compressed
