"""A cache layer that keeps what its policy keeps, and the attention over it.

The exact form: the attention function gathers the mask's columns through the original column of
each slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

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
from foveate.backends.hf.held_layer import HeldLayer, is_whole
from foveate.backends.hf.projection import output_weight
from foveate.backends.hf.state import Again
from foveate.backends.hf.stats import LayerStats
from foveate.core.layer import Layer
from foveate.core.pipeline import Kept, bytes_of_pairs
from foveate.core.protocols import Pruning
from foveate.core.slots import Slots
from foveate.core.storage import DensePairs, Pairs, RewrittenPairs, rewritten
from foveate.errors import UnsupportedCache
from foveate.ops.column_sums import attention_of_one


class FoveateLayer(HeldLayer):  # type: ignore[no-untyped-call]
    """One layer of a cache under a policy."""

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

    def _slots(self, queries: Queries, columns: Int[Tensor, "b h n"]) -> Slots:
        """The slots as the policy sees them: one object for layers that hold every column."""
        state, span = self.state, (self.seen - queries.q.shape[2], self.seen)
        slots = state.slots.of(
            columns, not is_whole(self.pairs), span, queries.facts(), state.images(), queries.mask
        )
        form = partial(self.form, queries.q.shape[1])
        return state.reading.with_budget(slots, self.at, self.ordinal, form)

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

    # Decoding

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
