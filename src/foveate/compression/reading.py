"""One prompt under one policy, for any engine, in any number of passes.

An engine passes what it reads, layer by layer and pass by pass, to :meth:`PromptReading.read`,
which returns what to keep; the engine stores the pairs. Everything remembered between passes is
here or, per layer, in :mod:`foveate.compression.layer_memory`.
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
from foveate.compression.budgeting import Budgeted, budgeted, raised, warn_where_raised
from foveate.compression.byte_budget import Bytes, check_form
from foveate.compression.early_removal import shed
from foveate.compression.groups import Groups
from foveate.compression.layer_memory import Pass, Phase, Remembered
from foveate.compression.pipeline import Kept, everything, folded, keep, observed, score
from foveate.errors import InvalidInput
from foveate.policies.policy import Policy
from foveate.policies.protocols import Budget, EvenPruning, Moment, ReadsGradients
from foveate.policies.traits import trait


class PromptReading:
    """One prompt, layer by layer.

    Args:
        policy: what to keep.
        depth: number of layers that are compressed.
        forms: form of each layer's pairs; by default that of the layer at hand. Only a budget in
            bytes needs it.
        strict: refuse a budget smaller than what is always kept, instead of raising it.
        most_heads: KV heads of all layers, or more, if pairs may be removed before all layers are
            read (:mod:`foveate.compression.early_removal`).
        leaders: layers that keep the set of an earlier layer instead of one of their own, each with
            that layer, by ordinal.

    ``layers`` are the layers' memories, by ordinal. ``requested`` are the tokens per KV head that
    each row's budget requests, once the prompt has been read; None under an auto budget.
    """

    def __init__(
        self,
        policy: Policy,
        depth: int,
        *,
        forms: Sequence[Form] | None = None,
        strict: bool = False,
        most_heads: int | None = None,
        leaders: Mapping[int, int] | None = None,
    ):
        self.most_heads = most_heads
        self._groups = Groups(leaders) if leaders else None
        self.policy, self.depth, self.strict = policy, depth, strict
        self.forms = None if forms is None else tuple(forms)
        self.requested: Int[Tensor, "b"] | None = None
        self._bytes: Bytes | None = None
        self._with_other_budget: Policy | None = None
        self.layers = [Remembered() for _ in range(depth)]
        self.notes: list[Mapping[str, Tensor]] = []
        self._waiting: list[Scored] = []

    def completed(self, layer: Layer) -> dict[int, Kept]:
        """Read a layer of a prompt in a single pass; see :meth:`read`."""
        seen = layer.k.shape[2]
        return self.read(layer, Pass.of(seen, 0, seen), layer.slots.available)

    def read(
        self, layer: Layer, at: Pass, stored: Int[Tensor, "b h"], *, budget: Budget | None = None
    ) -> dict[int, Kept]:
        """Apply the policy to a pass of a layer.

        Args:
            layer: tensors of the pass, and all stored slots. Its budget (``tokens`` of its slots)
                is the policy's (:meth:`with_budget`) if it is None; ``state`` and ``earlier`` are
                filled in here.
            at: progress of the pass.
            stored: pairs per KV head.
            budget: replaces the policy's at this layer.

        Returns:
            By ordinal, the layers that keep fewer pairs from now on, or that have to be stored now:
            at most this one, or all of them at once if the budget spans the layers.

        Raises:
            InvalidInput: a row has no tokens, or the last pass is too short for the window.
            InvalidBudget: the budget is smaller than what is always kept.
        """
        memory, policy = self.layers[layer.ordinal], self.policy
        layer = self._prepared(layer, at)
        unfinished = at.phase is Phase.READING
        query_count = policy.score.queries(self._longest_budget(layer, at))
        if memory.queries is not None:
            layer = memory.with_earlier(layer, query_count)
        goes_on = unfinished or policy.compresses_again
        if goes_on or memory.queries is not None:
            positions = None if policy.prune is None else layer.q_pos
            memory.remember(layer.q, layer.slots.q_image, query_count if goes_on else 0, positions)
        if unfinished and not policy.when.reads:
            return {}
        if not unfinished and layer.ordinal == 0:
            _refuse_empty_rows(layer)
        if at.phase is Phase.FINISHING:
            if budget is None and layer.ordinal == 0:  # with one, the engine has computed it
                self._note_requested(layer, at)
            memory.finished = at.seen
            memory.tokens = None if policy.grows else layer.slots.tokens
        if not policy.when(self._moment(layer, at, stored)):
            return {}
        if policy.reads_again and not self._fits_budget(layer):
            memory.unread = _without_pairs(layer, max(1, query_count))
            return {}
        return self._compressed(layer, budget, at.seen, query_count)

    @property
    def waits(self) -> bool:
        """True if the prompt has been read, and needs a re-prefill before it is compressed."""
        return all(memory.unread is not None for memory in self.layers)

    def show_reread(self, layer: Layer) -> None:
        """Observe a re-prefill pass. Its slots follow the prompt's, and are discarded later."""
        memory, score = self.layers[layer.ordinal], self.policy.reads_again
        if score is not None and memory.unread is not None:
            layer = replace(layer, state=memory.state)
            memory.state = {**memory.state, **folded(layer, score.again(layer.per_head))}

    def answered(self, layer: Layer, gradient: Float[Tensor, "b m hq e"]) -> None:
        """Observe a question about the prompt's beginning, with its answer.

        ``gradient`` is that of the answer with respect to the heads' outputs.
        """
        memory, score = self.layers[layer.ordinal], self.policy.reads_again
        if isinstance(score, ReadsGradients) and memory.unread is not None:
            prompt_layer = replace(layer, state=memory.state)
            state = score.answered(prompt_layer.per_head, gradient)
            memory.state = {**memory.state, **folded(layer, state)}

    def read_again(
        self,
        ordinal: int,
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n e"],
        expanded: tuple[Tensor, Tensor] | None = None,
    ) -> dict[int, Kept]:
        """Return what a layer keeps after the re-prefill, by ordinal as in :meth:`read`."""
        memory = self.layers[ordinal]
        unread, memory.unread = memory.unread, None
        if unread is None:
            return {}
        layer = replace(unread, k=k, v=v, expanded=expanded, state=memory.state)
        return self._compressed(layer, None, memory.finished, None)

    def prune(self, ordinal: int, at: Pass, lengths: Int[Tensor, "b"], pairs: Pairs) -> Kept | None:
        """Apply a pruning rule to ``pairs`` during decoding; None if all stay."""
        memory, rule = self.layers[ordinal], self.policy.prunes
        if rule is None:
            return None
        stored, kept, length = pairs.counts, memory.kept, lengths + at.to_read
        if trait(rule, "of_answer"):
            columns = pairs.columns
            real = columns >= (at.seen - lengths)[:, None, None]  # uncompressed pairs have padding
            stored, kept = real.sum(-1), (real & (columns < memory.finished)).sum(-1)
        if kept is None:
            return None  # the prompt fitted into its budget
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
        """Return the pairs that a pruning rule removes during decoding, if all heads lose the same.

        Needs no device sync.

        Args:
            ordinal: of the layer.
            at: progress of the pass.
            pad: padding in front of every row.
            stored: pairs of each head, the same number for all.

        Returns:
            Indices of pairs in order; None if heads may lose different ones.
        """
        memory, rule = self.layers[ordinal], self.policy.when
        if trait(rule, "of_answer"):
            return None
        if memory.kept is None:
            return range(0)  # the prompt fitted into its budget
        kept = memory.kept_by_each
        if kept is None or not isinstance(rule, EvenPruning):
            return None
        return rule.leave(stored, at.seen - pad, memory.finished - pad, kept)

    def one_out(self, layer: Layer, at: Pass) -> Int[Tensor, "b h 1"]:
        """Observe a token of the answer, and return the slot of each head whose pair it replaces.

        For a policy that rewrites. Slots, and their running sums, may be in any order; the sums of
        the returned slots become zero. Needs no device sync.
        """
        memory, policy = self.layers[layer.ordinal], self.policy
        layer = self._prepared(layer, at)
        values = layer.folded(policy.score(layer.per_head).values.float())
        values = values.masked_fill(policy.select.protect(layer.slots), torch.inf)
        lowest = values == values.amin(-1, keepdim=True)
        slot = torch.where(lowest, layer.pos, -1).argmax(-1, keepdim=True)  # ties: the latest
        memory.state = {name: t.scatter(-1, slot, 0.0) for name, t in memory.state.items()}
        return slot

    def with_budget(self, slots: Slots, at: Pass, ordinal: int, form: Callable[[], Form]) -> Slots:
        """Return the slots with each row's budget.

        It follows from the prompt's length, however much of it (or of the answer) was read; under a
        rule whose budget grows, from all tokens read. ``form`` computes the form of this layer's
        pairs, which only a budget in bytes needs.
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
        """Return the bytes of a budget in bytes."""
        forms = self.forms or (form(),) * self.depth
        if self.forms is not None:
            check_form(forms[ordinal], form())
        uncompressed = self.layers[ordinal].kept is None
        bound = Bytes(self.policy, forms, columns, uncompressed, self.strict)
        if bound != self._bytes:  # keep an equal one: it caches its results
            self._bytes = bound
        return self._bytes

    def _longest_budget(self, layer: Layer, at: Pass) -> int:
        """Return the largest budget of a row.

        During a prompt it is an upper bound: later text may be protected, and raise the budget.
        """
        longest = layer.slots.longest_budget
        if at.phase is not Phase.READING or self.strict or self.policy.keeps_by_position:
            return longest
        return max(longest, int(layer.slots.lengths.max()) + at.to_read)

    def _note_requested(self, layer: Layer, at: Pass) -> None:
        """Record the requested budget, once per prompt, and warn if it was raised."""
        if self.policy.amount.kind == "auto":
            return
        without_budget = replace(layer.slots, tokens=None)
        budgets = self._budgeted(without_budget, at, 0, partial(_form, layer))
        self.requested = budgets.requested
        if not self.strict:
            warn_where_raised(self.policy, budgets._replace(slots=layer.slots))

    def _prepared(self, layer: Layer, at: Pass) -> Layer:
        """Return the layer with its budget, earlier notes and updated running sums."""
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

    def _fits_budget(self, layer: Layer) -> bool:
        """Return True if the layer fits its budget, so that nothing needs a score."""
        return self.layers[layer.ordinal].kept is None and layer.slots.all_fits

    def _moment(self, layer: Layer, at: Pass, stored: Int[Tensor, "b h"]) -> Moment:
        memory, seen = self.layers[layer.ordinal], layer.slots.lengths
        kept = memory.kept
        if kept is None or self.policy.grows:  # never compressed, or growing: the budget itself
            tokens = seen if layer.slots.tokens is None else layer.slots.tokens
            kept = tokens[:, None].expand_as(stored)
        completed, length = at.phase is Phase.FINISHING, seen - (at.seen - memory.finished)
        return Moment(completed, stored, seen, length, kept)

    def _compressed(
        self, layer: Layer, budget: Budget | None, seen: int, queries: int | None
    ) -> dict[int, Kept]:
        policy = self.policy if budget is None else self._under(budget)
        recompressed = self.layers[layer.ordinal].kept is not None
        scored = score(self.policy, layer, recompressed=recompressed, queries=queries)
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
            kept_by_layer = {layer.ordinal: keep(policy, [scored], within, self._groups)[0]}
        stored_unchanged = policy.store.exact and (within is None or within.stays(layer.slots))
        if scored is None and not stored_unchanged:
            check_finite(layer, 0, policy)  # in codes a NaN would spread to others of its group
            kept_by_layer[layer.ordinal] = everything(layer)
        for ordinal, kept in kept_by_layer.items():
            self.layers[ordinal].note_kept(
                kept.counts if kept.budgets is None else kept.budgets, kept.mask
            )
            if policy.when.decodes:
                _ = self.layers[ordinal].kept_by_each  # sync now, and not while decoding
        return kept_by_layer

    def _under(self, budget: Budget) -> Policy:
        """Return the policy with another budget.

        Layers with the same budget share one object, because a policy caches what it knows of its
        stages.
        """
        if self._with_other_budget is None or self._with_other_budget.budget != budget:
            self._with_other_budget = replace(self.policy, budget=budget)
        return self._with_other_budget

    def _all_together(
        self, layer: Layer, scored: Scored | None, within: Bytes | None
    ) -> dict[int, Kept]:
        """Return what all layers keep once the last one is read; before that, sheds pairs."""
        self._waiting += [scored] if scored else []
        if layer.ordinal < self.depth - 1:
            return self._shed(layer.k.shape[1]) if scored else {}
        waiting, self._waiting = self._waiting, []
        kept = keep(self.policy, waiting, within, self._groups) if waiting else []
        return {
            scored_layer.layer.ordinal: layer_kept
            for scored_layer, layer_kept in zip(waiting, kept, strict=True)
        }

    def _shed(self, heads: int) -> dict[int, Kept]:
        """Remove pairs of the waiting layers that cannot be kept, and return what these keep."""
        if self.most_heads is None or heads * self.depth > self.most_heads:
            self.most_heads = None  # the model's layers have more heads than declared
            return {}
        self._waiting, kept_by_layer = shed(self.policy, self._waiting, self.most_heads)
        return kept_by_layer


def _without_pairs(layer: Layer, queries: int) -> Layer:
    """Return the layer with its last queries, without its pairs, which the engine stores."""
    return replace(
        layer,
        q=layer.q[:, :, -queries:].clone(),
        k=layer.k[:, :, :0],
        v=layer.v[:, :, :0],
        slots=layer.slots.from_query(max(0, layer.q.shape[2] - queries)),
        column_sums=None,
        window_sums=None,
        expanded=None,
    )


def _form(layer: Layer) -> Form:
    return Form.of(layer.q.shape[1], layer.k, layer.v)


def _refuse_empty_rows(layer: Layer) -> None:
    if bool((layer.slots.lengths < 1).any()):
        row = int((layer.slots.lengths < 1).nonzero()[0, 0])
        raise InvalidInput(f"row {row} is nothing but padding.")
