"""``budget=64MB``: the largest number of tokens whose tensors fit into these bytes.

All tensors count that the layers store once the prompt has been read: keys, values, columns, starts
of heads, codes and scales, channels, running sums, and queries that a decoding rule remembers.

The number of tokens is computed from lengths and shapes, before anything is scored. Ragged storage
depends on scores, so it is counted once they are known, and fewer tokens are kept if it does not
fit. Under a rule that bounds heads while the answer grows (``over_budget``), the pair that is added
before another one is dropped counts, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored
from foveate.cache.pairs.pair_sizes import COLUMN, COUNT, Form, uncompressed_bytes
from foveate.cache.slots import Slots
from foveate.errors import InvalidBudget, UnsupportedModel
from foveate.policies.policy import Policy
from foveate.policies.protocols import Foreseeable, ForeseeableByHead, Held, Pruning, Weighs, Zeroes
from foveate.policies.traits import trait

Counts = Sequence[Int[Tensor, "b h"]]


@dataclass(frozen=True)
class Bytes:
    """A policy's bytes, and the prompt that they are for.

    ``forms`` are those of all compressed layers. ``columns`` is the number of columns up to the
    prompt's end. ``uncompressed`` is True while no pair was dropped. ``strict`` refuses budgets
    smaller than what is always kept.
    """

    policy: Policy
    forms: tuple[Form, ...]
    columns: int
    uncompressed: bool = True
    strict: bool = False

    @property
    def allowed(self) -> int:
        """Bytes over all layers and rows."""
        return int(self.policy.amount.value)

    # Before anything is scored

    def tokens(self, lengths: list[int]) -> int:
        """Return the largest number of tokens per KV head that fits; 0 if not even one does."""
        if self._fits_uncompressed(len(lengths)) and not self.policy.beyond:
            return max(lengths)
        heads = sum(form.heads for form in self.forms)
        high = self.allowed // heads + 1  # too many even at a byte per pair
        if not self.policy.beyond:  # no more than the prompt is kept
            high = min(high, max(lengths) + 1)
        return _largest(high, lambda tokens: self.at(tokens, lengths) <= self.allowed)

    def stays(self, slots: Slots) -> bool:
        """Return True if layers that keep every token may stay as they are.

        Then they include padding, and do not list columns.
        """
        return self._fits_uncompressed(slots.pos.shape[0]) and (
            slots.all_valid or not self.policy.beyond
        )

    def _fits_uncompressed(self, rows: int) -> bool:
        if not (self.uncompressed and self.policy.store.exact):
            return False
        pairs = sum(uncompressed_bytes(form, rows, self.columns) for form in self.forms)
        extra = [
            self._extra_bytes(ordinal, rows, self.columns) for ordinal in range(len(self.forms))
        ]
        return pairs + sum(extra) <= self.allowed

    def at(self, tokens: int, lengths: list[int], computed: Sequence[int] = ()) -> int:
        """Return the bytes of all layers at ``tokens`` per KV head, as far as lengths tell.

        ``computed`` limits the tokens of each layer, if some layers computed fewer than
        ``lengths``.
        """
        counts = self._counts_by_length(tokens, lengths)
        if computed:
            counts = [t.clamp_max(limit) for t, limit in zip(counts, computed, strict=True)]
        # Pairs of a prompt that fits are not merged until the answer exceeds the budget.
        merged = not self.policy.beyond or tokens < max(lengths)
        size = sum(self.of_layer(ordinal, kept, merged) for ordinal, kept in enumerate(counts))
        if self.policy.beyond and len(set(lengths)) > 1:  # rows below the budget make it ragged
            size += sum(len(lengths) * form.heads + 1 for form in self.forms) * COUNT
        return size

    def _counts_by_length(self, tokens: int, lengths: list[int]) -> list[Int[Tensor, "b h"]]:
        """Return the pairs of each head at ``tokens`` per KV head, as far as lengths tell."""
        if self.policy.beyond:  # answers grow until every row has that many
            lengths = [max(tokens, 1)] * len(lengths)
        depth, budget = len(self.forms), self._plan
        select, heads = self.policy.select, self.forms[0].heads
        always = getattr(select, "always", lambda _: select.protects)(tokens)
        if isinstance(budget, Foreseeable):
            rule = budget.by_length(depth)
        elif isinstance(budget, ForeseeableByHead):
            rule = budget.by_head(depth, heads)
        else:
            even = torch.tensor(lengths, dtype=torch.long, device="cpu").clamp_max(tokens)[:, None]
            return [even.expand(-1, form.heads) for form in self.forms]
        rows = [rule(tokens, min(always, tokens), n) if tokens < n else (n,) for n in lengths]
        # a row that fits completely has one number for all layers and heads
        rows = [row * (depth if len(row) == 1 else 1) for row in rows]
        per_layer = max(map(len, rows)) // depth  # numbers per layer: one, or one per head
        rows = [row if len(row) == per_layer * depth else row * per_layer for row in rows]
        counts = torch.tensor(rows, dtype=torch.long, device="cpu")
        layers = counts.view(len(rows), depth, per_layer).unbind(1)
        return [t.expand(-1, f.heads) for t, f in zip(layers, self.forms, strict=True)]

    @cached_property
    def _plan(self) -> Foreseeable | ForeseeableByHead | None:
        """The budget that determines counts from lengths, or None.

        A budget over heads may have one over layers inside.
        """
        budget = getattr(self.policy.budget, "layers", None) or self.policy.budget
        if isinstance(budget, Foreseeable):
            return budget if budget.foreseeable else None
        return budget if isinstance(budget, ForeseeableByHead) else None

    # Size of a layer

    def of_layer(self, ordinal: int, counts: Int[Tensor, "b h"], merged: bool = True) -> int:
        """Return the bytes of a layer with ``counts`` pairs per head, ``merged`` or as computed."""
        policy, form = self.policy, self.forms[ordinal]
        if not isinstance(policy.store, Weighs):
            raise InvalidBudget(
                f"budget {policy.amount} counts bytes, and {policy.store!r} does not say how many "
                "it takes. Give a share (20%) or a number of tokens."
            )
        merge, spare, zeroed = policy.merge, self.policy.beyond, 0
        if merged and isinstance(merge, Zeroes):
            residual = getattr(policy.store, "residual", 0)  # these keep all channels
            zeroed = merge.zeroed(form.key) if merge.recent <= residual else 0
        size = policy.store.bytes_of(Held(counts, form, self.columns, spare, zeroed))
        if policy.rewrites:  # RewrittenPairs: columns of the room, and a free slot
            size += counts.numel() * (spare * COLUMN + COUNT)
        return size + self._extra_bytes(ordinal, counts.shape[0], int(counts.max()) + spare)

    def _extra_bytes(self, ordinal: int, rows: int, slots: int) -> int:
        """Return the bytes of a layer's running sums and remembered queries."""
        policy, form = self.policy, self.forms[ordinal]
        size = rows * form.heads * slots * self._running[ordinal]
        if policy.when.decodes and not isinstance(policy.when, Pruning):
            queries = min(policy.score.queries(slots), self.columns)
            size += rows * queries * form.query_heads * form.key * form.dtype.itemsize
        return size

    @cached_property
    def _running(self) -> list[int]:
        """Bytes of the running sums of one slot, per layer."""
        known = {form: _running(self.policy, form) for form in set(self.forms)}
        return [known[form] for form in self.forms]

    # Once scores are known

    def fitted(self, scored: Sequence[Scored]) -> tuple[Sequence[Scored], Counts]:
        """Return the layers and the pairs of each KV head that fit into the bytes of these layers.

        Budgets are lowered if necessary, but not below what is always kept.

        Raises:
            InvalidBudget: what is always kept does not fit, and the budget is ``strict``.
        """
        allowed, tokens = self._allowed_for(scored), scored[0].tokens
        counts = self.policy.budget(scored, tokens)
        if self._weigh(scored, counts) <= allowed:
            return scored, counts
        least = torch.stack(
            [scored_layer.protected.amax(-1).cpu() for scored_layer in scored]
        ).amax(0)

        def at(limit: int) -> tuple[list[Scored], Counts]:
            fewer = tokens.clamp_max(max(1, limit)).maximum(least.to(tokens.device))
            fewer = fewer.minimum(tokens)
            lowered = [
                replace(scored_layer, tokens=fewer.to(scored_layer.tokens.device))
                for scored_layer in scored
            ]
            return lowered, self.policy.budget(lowered, lowered[0].tokens)

        fitting = at(_largest(int(tokens.max()), lambda limit: self._weigh(*at(limit)) <= allowed))
        if self.strict and self._weigh(*fitting) > allowed:
            raise InvalidBudget(
                f"budget {self.policy.amount} does not hold what is always kept (observation "
                "window and sinks count inside the budget). Raise the budget or lower the window."
            )
        return fitting

    def _allowed_for(self, scored: Sequence[Scored]) -> int:
        """Return the bytes of these layers: all, or their share as determined by lengths."""
        if len(scored) == len(self.forms):
            return self.allowed
        if self._plan is None and len(set(self.forms)) == 1:
            return self.allowed // len(self.forms)
        slots, tokens = scored[0].layer.slots, int(scored[0].tokens.max())
        planned = self._counts_by_length(tokens, slots.lengths.tolist())
        sizes = [self.of_layer(ordinal, counts) for ordinal, counts in enumerate(planned)]
        own_size = sum(sizes[scored_layer.layer.ordinal] for scored_layer in scored)
        # more than its share only if the budget was raised beyond the bytes
        return max(own_size, self.allowed * own_size // sum(sizes))

    def _weigh(self, scored: Sequence[Scored], counts: Counts) -> int:
        layers = zip(scored, counts, strict=True)
        return sum(
            self.of_layer(scored_layer.layer.ordinal, kept.cpu()) for scored_layer, kept in layers
        )


def _largest(end: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below ``end`` that fits, by bisection; 0 if none does."""
    low = 0
    while end - low > 1:
        middle = (low + end) // 2
        low, end = (middle, end) if fits(middle) else (low, middle)
    return low


def check_form(expected: Form, actual: Form) -> None:
    """Raise UnsupportedModel if pairs have another form than bytes were computed for."""
    if actual != expected:
        raise UnsupportedModel(
            f"the model computes pairs of {actual}, but its configuration says {expected}, so a "
            "budget in bytes cannot be divided. Replace auto by shares, such as keep=50% and "
            "bits=4."
        )


def _running(policy: Policy, form: Form) -> int:
    """Return the bytes of a slot's running sums in one head, measured on one token of zeros."""
    if not (policy.running or policy.reads_again):
        return 0
    # most scores do not declare the number and dtype of their sums: try one token
    layer = _token(form)
    state: dict[str, Tensor] = {}
    declared = sum(int(trait(score, "slot_bytes")) for score in policy.running)
    for score in policy.running:
        if not trait(score, "slot_bytes"):
            state |= score.observe(layer)
    if policy.reads_again is not None:
        # a re-prefill pass follows the prompt: a slot of the prompt, then one of the pass
        k, v = (t.expand(-1, -1, 2, -1) for t in (layer.k, layer.v))
        pos = layer.pos.new_tensor([[[0, 1]]])
        text = torch.full_like(pos, -1)
        slots = replace(layer.slots, pos=pos, q_pos=pos[:, 0, 1:], image=text, spot=text)
        state |= policy.reads_again.again(replace(layer, k=k, v=v, slots=slots, state=state))
    return declared + sum(t.element_size() for t in state.values())


def _token(form: Form) -> Layer:
    """Return a prompt of one token, under one KV head."""
    groups = form.query_heads // form.heads
    q, k, v = (
        torch.zeros(1, heads, 1, size, dtype=form.dtype, device="cpu")
        for heads, size in ((groups, form.key), (1, form.key), (1, form.value))
    )
    first = torch.zeros(1, 1, dtype=torch.long, device="cpu")
    text = first[None] - 1
    slots = Slots(
        pos=first[None],
        q_pos=first,
        image=text,
        spot=text,
        q_image=text[0],
        tokens=first[0] + 1,
    )
    weight = q.new_zeros(groups, form.value, 1)
    return Layer(
        q=q,
        k=k,
        v=v,
        slots=slots,
        scale=1.0,
        output_weight=weight,
        residual_norm=q.new_ones(1, 1),
        hidden=q.new_ones(1, 1, 1),
    )
