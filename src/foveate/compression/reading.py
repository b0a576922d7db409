"""One prompt under one policy, whichever engine reads it and in however many passes.

An engine says, layer by layer and pass by pass, what it has read (:meth:`PromptReading.read`), and
is told what to keep. All that is remembered between passes is here or, of each layer by itself, in
:mod:`foveate.compression.between_passes`. An engine keeps the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, check_finite
from foveate.cache.pairs import Form, Pairs
from foveate.cache.slots import Slots
from foveate.compression.between_passes import Pass, Phase, Remembered
from foveate.compression.budgeting import Budgeted, budgeted, raised, say_where_raised
from foveate.compression.byte_budget import Bytes, check_form
from foveate.compression.pipeline import Kept, everything, keep, observed, score
from foveate.compression.shedding import shed
from foveate.errors import InvalidInput
from foveate.policies.policy import Policy
from foveate.policies.protocols import Budget, EvenPruning, Moment, ReadsGradients
from foveate.policies.traits import trait


class PromptReading:
    """One prompt, layer by layer. ``layers`` are what each remembers, by ordinal.

    Args:
        policy: what to keep.
        depth: number of layers that are compressed.
        forms: of the pairs of each of them; all like the layer at hand by default. Only a budget in
            bytes needs it.
        strict: whether a budget that is less than what is always kept is refused, and not raised.
        most_heads: KV heads of all layers together, or more, where layers may let pairs go before
            all of them are read (:mod:`foveate.compression.shedding`).

    ``asked`` are the tokens per KV head that each row's budget asks for, once the prompt has been
    read; None under an auto budget.
    """

    def __init__(
        self,
        policy: Policy,
        depth: int,
        *,
        forms: Sequence[Form] | None = None,
        strict: bool = False,
        most_heads: int | None = None,
    ):
        self.most_heads = most_heads
        self.policy, self.depth, self.strict = policy, depth, strict
        self.forms = None if forms is None else tuple(forms)
        self.requested: Int[Tensor, "b"] | None = None
        self._bytes: Bytes | None = None
        self._instead: Policy | None = None
        self.layers = [Remembered() for _ in range(depth)]
        self.notes: list[Mapping[str, Tensor]] = []
        self._waiting: list[Scored] = []

    def completed(self, layer: Layer) -> dict[int, Kept]:
        """What is kept once a layer has been read in a single pass; see :meth:`read`."""
        seen = layer.k.shape[2]
        return self.read(layer, Pass.of(seen, 0, seen), layer.slots.available)

    def read(
        self, layer: Layer, at: Pass, stored: Int[Tensor, "b h"], *, budget: Budget | None = None
    ) -> dict[int, Kept]:
        """Shows a pass of a layer to the policy.

        Args:
            layer: what the pass has read, and all slots that are held. Its budget (``tokens`` of
                its slots) is the policy's (:meth:`with_budget`), unless it brings one; its
                ``state`` and ``earlier`` are filled in here.
            at: where the pass stands.
            stored: pairs that each KV head holds.
            budget: stands in for the policy's at this layer.

        Returns:
            By ordinal, the layers that hold less from now on, or that are to be stored now: at
            most this one, or all of them at once where the budget spans the layers.

        Raises:
            InvalidInput: a row without tokens, or a last pass that is too short for the window.
            InvalidBudget: a budget below what is always kept.
        """
        memory, policy = self.layers[layer.ordinal], self.policy
        layer = self._shown(layer, at)
        unfinished = at.phase is Phase.READING
        wanted = policy.score.queries(self._longest_budget(layer, at))
        if memory.queries is not None:
            layer = memory.with_earlier(layer, wanted)
        goes_on = unfinished or policy.compresses_again
        if goes_on or memory.queries is not None:
            places = None if policy.prune is None else layer.q_pos
            memory.remember(layer.q, layer.slots.q_image, wanted if goes_on else 0, places)
        if unfinished and not policy.when.reads:
            return {}
        if not unfinished and layer.ordinal == 0:
            _refuse_empty_rows(layer)
        if at.phase is Phase.FINISHING:
            if budget is None and layer.ordinal == 0:  # otherwise the engine has worked it out
                self._note_asked(layer, at)
            memory.finished = at.seen
            memory.tokens = None if policy.grows else layer.slots.tokens
        if not policy.when(self._moment(layer, at, stored)):
            return {}
        if policy.reads_again and not self._stays_whole(layer):
            memory.unread = _without_pairs(layer, max(1, wanted))
            return {}
        return self._compressed(layer, budget, at.seen, wanted)

    @property
    def waits(self) -> bool:
        """Whether the prompt has been read, and is to be read again before it is compressed."""
        return all(memory.unread is not None for memory in self.layers)

    def show_reread(self, layer: Layer) -> None:
        """Shows a pass in which tokens of the prompt are read again, after all of its slots; its
        own slots come last, and do not stay.
        """
        memory, score = self.layers[layer.ordinal], self.policy.reads_again
        if score is not None and memory.unread is not None:
            memory.state = {**memory.state, **score.again(replace(layer, state=memory.state))}

    def answered(self, layer: Layer, gradient: Float[Tensor, "b m hq e"]) -> None:
        """Shows a question that was asked after the prompt's beginning, with its answer, and the
        gradient of the answer by the heads' outputs.
        """
        memory, score = self.layers[layer.ordinal], self.policy.reads_again
        if isinstance(score, ReadsGradients) and memory.unread is not None:
            shown = replace(layer, state=memory.state)
            memory.state = {**memory.state, **score.answered(shown, gradient)}

    def read_again(
        self, ordinal: int, k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"]
    ) -> dict[int, Kept]:
        """What is kept once the prompt has been read again: as :meth:`read`, layer after layer."""
        memory = self.layers[ordinal]
        unread, memory.unread = memory.unread, None
        if unread is None:
            return {}
        layer = replace(unread, k=k, v=v, state=memory.state)
        return self._compressed(layer, None, memory.finished, None)

    def prune(self, ordinal: int, at: Pass, lengths: Int[Tensor, "b"], pairs: Pairs) -> Kept | None:
        """What a rule that prunes keeps of ``pairs`` while an answer is decoded; None for all."""
        memory, rule = self.layers[ordinal], self.policy.prunes
        if rule is None:
            return None
        stored, kept, length = pairs.counts, memory.kept, lengths + at.to_read
        if trait(rule, "of_answer"):
            columns = pairs.columns
            real = columns >= (at.seen - lengths)[:, None, None]  # a whole prompt's padding is held
            stored, kept = real.sum(-1), (real & (columns < memory.finished)).sum(-1)
        if kept is None:
            return None  # the whole prompt fitted, so its share is everything
        moment = Moment(False, stored, lengths, length, kept)
        if not rule(moment):
            return None
        k, v, columns = pairs.padded()
        real = columns >= (at.seen - lengths)[:, None, None]
        mask = rule.keeps(moment, k.shape[2]) & real
        memory.state = memory.grown(k.shape[2])
        memory.compact(mask)
        return Kept(mask, None, k, v)

    def leave(self, ordinal: int, at: Pass, pad: int, stored: int) -> range | None:
        """Which of the pairs that each head holds leave while an answer is decoded, as places in
        order, under a rule that prunes; None where it says that of each head by itself. Nothing is
        asked of the device.

        Args:
            ordinal: of the layer, whose heads all hold ``stored`` pairs.
            at: where the pass stands.
            pad: padding in front of every row.
            stored: pairs held by each head.
        """
        memory, rule = self.layers[ordinal], self.policy.when
        if trait(rule, "of_answer"):
            return None
        if memory.kept is None:
            return range(0)  # the whole prompt fitted
        kept = memory.kept_by_each
        if kept is None or not isinstance(rule, EvenPruning):
            return None
        return rule.leave(stored, at.seen - pad, memory.finished - pad, kept)

    def one_out(self, layer: Layer, at: Pass) -> Int[Tensor, "b h 1"]:
        """Under a policy that rewrites: shows it a token of the answer, and returns the slot whose
        pair leaves each head. Slots, and what is remembered of them, may be in any order; the free
        slot's sums are zero from now on. Nothing is asked of the device.
        """
        memory, policy = self.layers[layer.ordinal], self.policy
        layer = self._shown(layer, at)
        values = policy.score(layer).values.float()
        values = values.masked_fill(policy.select.protect(layer.slots), torch.inf)
        lowest = values == values.amin(-1, keepdim=True)
        slot = torch.where(lowest, layer.pos, -1).argmax(-1, keepdim=True)  # of equals the latest
        memory.state = {name: t.scatter(-1, slot, 0.0) for name, t in memory.state.items()}
        return slot

    def with_budget(self, slots: Slots, at: Pass, ordinal: int, form: Callable[[], Form]) -> Slots:
        """The slots with each row's budget, which is that of its prompt, however much of it (or
        beyond) has been read; under a rule whose budget grows, that of all that has.
        ``form`` tells that of this layer's pairs, where it is asked for.
        """
        if slots.tokens is not None:
            return slots
        memory, answering = self.layers[ordinal], at.phase is Phase.ANSWERING
        if answering and memory.tokens is not None:
            slots = slots.with_budget(memory.tokens)
            return slots if self.strict else raised(slots, self.policy)
        budgeted_slots = self._budgeted(slots, at, ordinal, form)
        if answering and not self.policy.grows:
            memory.tokens = budgeted_slots.slots.tokens
        return budgeted_slots.slots

    def _budgeted(self, slots: Slots, at: Pass, ordinal: int, form: Callable[[], Form]) -> Budgeted:
        end = max(at.seen, at.end) if self.policy.grows else at.end
        in_bytes = self.policy.amount.kind == "bytes"
        within = self._within(end, ordinal, form) if in_bytes else None
        return budgeted(slots, self.policy, within, end - at.seen, self.strict)

    def _within(self, columns: int, ordinal: int, form: Callable[[], Form]) -> Bytes:
        """The bytes of a budget in bytes."""
        forms = self.forms or (form(),) * self.depth
        if self.forms is not None:
            check_form(forms[ordinal], form())
        whole = self.layers[ordinal].kept is None
        bound = Bytes(self.policy, forms, columns, whole, self.strict)
        if bound != self._bytes:  # of the same ones, the same: they remember what they found
            self._bytes = bound
        return self._bytes

    def _longest_budget(self, layer: Layer, at: Pass) -> int:
        """The largest budget of a row; of a prompt that goes on after the pass, the largest that it
        may be yet: text that is to come may have to stay.
        """
        longest = layer.slots.longest_budget
        if at.phase is not Phase.READING or self.strict or self.policy.keeps_by_position:
            return longest
        return max(longest, int(layer.slots.lengths.max()) + at.to_read)

    def _note_asked(self, layer: Layer, at: Pass) -> None:
        """What was asked for, once a prompt."""
        if self.policy.amount.kind == "auto":
            return
        own = replace(layer.slots, tokens=None)
        budgets = self._budgeted(own, at, 0, partial(_form, layer))
        self.requested = budgets.requested
        if not self.strict:
            say_where_raised(self.policy, budgets._replace(slots=layer.slots))

    def _shown(self, layer: Layer, at: Pass) -> Layer:
        """The layer with its budget and with what is known of earlier passes and layers; the
        running sums have seen it.
        """
        memory, slots = self.layers[layer.ordinal], layer.slots
        if slots.tokens is None:
            slots = self.with_budget(slots, at, layer.ordinal, partial(_form, layer))
        layer = replace(
            layer,
            slots=slots,
            state=memory.grown(layer.k.shape[2]) if memory.state else {},
            earlier=tuple(self.notes) if layer.ordinal else (),
        )
        if not self.policy.running:
            memory.state = layer.state
            return layer
        memory.state = observed(self.policy, layer)
        return replace(layer, state=memory.state)

    def _stays_whole(self, layer: Layer) -> bool:
        """Whether nothing is to be chosen in a layer, so that nothing has to be scored."""
        return self.layers[layer.ordinal].kept is None and layer.slots.all_fits

    def _moment(self, layer: Layer, at: Pass, stored: Int[Tensor, "b h"]) -> Moment:
        memory, seen = self.layers[layer.ordinal], layer.slots.lengths
        kept = memory.kept
        if kept is None or self.policy.grows:  # its budget: it never was compressed, or grows
            tokens = seen if layer.slots.tokens is None else layer.slots.tokens
            kept = tokens[:, None].expand_as(stored)
        completed, length = at.phase is Phase.FINISHING, seen - (at.seen - memory.finished)
        return Moment(completed, stored, seen, length, kept)

    def _compressed(
        self, layer: Layer, budget: Budget | None, seen: int, queries: int | None
    ) -> dict[int, Kept]:
        policy = self.policy if budget is None else self._under(budget)
        before = self.layers[layer.ordinal].kept is not None
        scored = score(self.policy, layer, recompressed=before, queries=queries)
        notes = scored.scores.notes if scored else {}
        self.notes = [*(self.notes if layer.ordinal else ()), notes]
        kept_by_layer: dict[int, Kept] = {}
        within = None
        if policy.amount.kind == "bytes":
            columns = self.layers[layer.ordinal].finished or seen
            within = self._within(columns, layer.ordinal, partial(_form, layer))
        if policy.scope == "model":
            kept_by_layer = self._all_together(layer, scored, within)
        elif scored is not None:
            kept_by_layer = {layer.ordinal: keep(policy, [scored], within)[0]}
        as_it_is = policy.store.exact and (within is None or within.stays(layer.slots))
        if scored is None and not as_it_is:
            check_finite(layer, 0, policy)  # in codes it would reach others of its head
            kept_by_layer[layer.ordinal] = everything(layer)
        for ordinal, kept in kept_by_layer.items():
            self.layers[ordinal].note_kept(
                kept.counts if kept.told is None else kept.told, kept.mask
            )
            if policy.when.decodes:
                _ = self.layers[ordinal].kept_by_each  # asked now, and not while decoding
        return kept_by_layer

    def _under(self, budget: Budget) -> Policy:
        """The policy with another budget: one object for all layers of which it is the same, as
        what a policy knows of its stages is asked once for each.
        """
        if self._instead is None or self._instead.budget != budget:
            self._instead = replace(self.policy, budget=budget)
        return self._instead

    def _all_together(
        self, layer: Layer, scored: Scored | None, within: Bytes | None
    ) -> dict[int, Kept]:
        """A budget over all layers waits for the last one."""
        self._waiting += [scored] if scored else []
        if layer.ordinal < self.depth - 1:
            return self._shed(layer.k.shape[1]) if scored else {}
        waiting, self._waiting = self._waiting, []
        kept = keep(self.policy, waiting, within) if waiting else []
        return {one.layer.ordinal: one_kept for one, one_kept in zip(waiting, kept, strict=True)}

    def _shed(self, heads: int) -> dict[int, Kept]:
        """Of the layers that wait, what stays of those of which a part can go now."""
        if self.most_heads is None or heads * self.depth > self.most_heads:
            self.most_heads = None  # a model whose layers have more heads than it says
            return {}
        self._waiting, kept_by_layer = shed(self.policy, self._waiting, self.most_heads)
        return kept_by_layer


def _without_pairs(layer: Layer, wanted: int) -> Layer:
    """The layer with its last queries, to wait on: its pairs will be where they are held."""
    return replace(
        layer,
        q=layer.q[:, :, -wanted:].clone(),
        k=layer.k[:, :, :0],
        v=layer.v[:, :, :0],
        slots=layer.slots.from_query(max(0, layer.q.shape[2] - wanted)),
        column_sums=None,
        window_sums=None,
    )


def _form(layer: Layer) -> Form:
    return Form.of(layer.q.shape[1], layer.k, layer.v)


def _refuse_empty_rows(layer: Layer) -> None:
    if bool((layer.slots.lengths < 1).any()):
        row = int((layer.slots.lengths < 1).nonzero()[0, 0])
        raise InvalidInput(f"row {row} is nothing but padding.")
