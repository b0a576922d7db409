"""``budget=64MB``: as many tokens as fit, with every tensor counted that the layers hold when the
prompt has been read: keys, values, columns, starts of heads, codes and scales, channels, running
sums, and what a rule that decodes remembers.

The number of tokens is found from lengths and shapes, before anything is scored. What only scores
tell (heads that keep different numbers, and so are stored ragged) is weighed once it is known, and
where it is too much, a little less is kept. While an answer grows under a rule that holds heads to
what they kept (``over_budget``), the bytes of the pair that comes before one goes are counted, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored
from foveate.cache.pairs.form import COLUMN, COUNT, Form, uncompressed_bytes
from foveate.cache.slots import Slots
from foveate.errors import InvalidBudget, UnsupportedModel
from foveate.policies.policy import Policy
from foveate.policies.protocols import Foreseeable, ForeseeableByHead, Held, Pruning, Weighs, Zeroes

Counts = Sequence[Int[Tensor, "b h"]]


@dataclass(frozen=True)
class Bytes:
    """A policy's bytes, and the prompt that they are for.

    ``forms`` are those of all compressed layers; ``columns`` are all of the batch up to the
    prompt's end; ``whole`` tells whether no pair has gone so far; ``strict`` refuses what does not
    hold what is always kept.
    """

    policy: Policy
    forms: tuple[Form, ...]
    columns: int
    whole: bool = True
    strict: bool = False

    @property
    def allowed(self) -> int:
        """Bytes over all layers and rows."""
        return int(self.policy.amount.value)

    # Before anything is scored

    def tokens(self, lengths: list[int]) -> int:
        """The most tokens per KV head, in rows that have as many; 0 where not even one fits."""
        if self._fits_whole(len(lengths)) and not self.policy.beyond:
            return max(lengths)
        heads = sum(form.heads for form in self.forms)
        high = self.allowed // heads + 1  # does not fit: no pair is a byte
        if not self.policy.beyond:  # the prompt is all that there is to keep
            high = min(high, max(lengths) + 1)
        return _largest(high, lambda tokens: self.at(tokens, lengths) <= self.allowed)

    def stays(self, slots: Slots) -> bool:
        """Whether the layers, which keep every token, may hold them as they are: with the padding,
        and without columns.
        """
        return self._fits_whole(slots.pos.shape[0]) and (slots.all_valid or not self.policy.beyond)

    def _fits_whole(self, rows: int) -> bool:
        if not (self.whole and self.policy.store.exact):
            return False
        pairs = sum(uncompressed_bytes(form, rows, self.columns) for form in self.forms)
        beside = [self._beside(place, rows, self.columns) for place in range(len(self.forms))]
        return pairs + sum(beside) <= self.allowed

    def at(self, tokens: int, lengths: list[int], computed: Sequence[int] = ()) -> int:
        """Bytes of all layers at so many tokens per KV head, in rows that have as many, as far as
        lengths tell. ``computed`` are the most that each layer has of a row, where not all do.
        """
        counts = self._foreseen(tokens, lengths)
        if computed:
            counts = [t.clamp_max(most) for t, most in zip(counts, computed, strict=True)]
        merged = not self.policy.beyond or tokens < max(lengths)  # or it stays whole until it grows
        size = sum(self.of_layer(place, each, merged) for place, each in enumerate(counts))
        if self.policy.beyond and len(set(lengths)) > 1:  # rows that are not full yet are ragged
            size += sum(len(lengths) * form.heads + 1 for form in self.forms) * COUNT
        return size

    def _foreseen(self, tokens: int, lengths: list[int]) -> list[Int[Tensor, "b h"]]:
        """What heads keep at so many tokens, as far as lengths tell."""
        if self.policy.beyond:  # answers grow until every row holds that many
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
        # a row that stays whole is one number, which is that of all layers and heads alike
        rows = [row * (depth if len(row) == 1 else 1) for row in rows]
        each = max(map(len, rows)) // depth  # numbers of a layer: one, or one for every head
        rows = [row if len(row) == each * depth else row * each for row in rows]
        counts = torch.tensor(rows, dtype=torch.long, device="cpu")
        layers = counts.view(len(rows), depth, each).unbind(1)
        return [t.expand(-1, f.heads) for t, f in zip(layers, self.forms, strict=True)]

    @cached_property
    def _plan(self) -> Foreseeable | ForeseeableByHead | None:
        """The budget, or the one over layers that one over heads holds, if lengths tell what layers
        keep.
        """
        budget = getattr(self.policy.budget, "layers", None) or self.policy.budget
        if isinstance(budget, Foreseeable):
            return budget if budget.foreseeable else None
        return budget if isinstance(budget, ForeseeableByHead) else None

    # What a layer holds

    def of_layer(self, place: int, counts: Int[Tensor, "b h"], merged: bool = True) -> int:
        """Bytes of a layer whose heads keep so many pairs, ``merged`` or as they came."""
        policy, form = self.policy, self.forms[place]
        if not isinstance(policy.store, Weighs):
            raise InvalidBudget(
                f"budget {policy.amount} counts bytes, and {policy.store!r} does not say how many "
                "it takes. Give a share (20%) or a number of tokens."
            )
        merge, spare, zeroed = policy.merge, self.policy.beyond, 0
        if merged and isinstance(merge, Zeroes):
            residual = getattr(policy.store, "residual", 0)  # the store holds these whole
            zeroed = merge.zeroed(form.key) if merge.recent <= residual else 0
        held = policy.store.bytes_of(Held(counts, form, self.columns, spare, zeroed))
        if policy.rewrites:  # columns of the room, too, and which slot is free
            held += counts.numel() * (spare * COLUMN + COUNT)
        return held + self._beside(place, counts.shape[0], int(counts.max()) + spare)

    def _beside(self, place: int, rows: int, slots: int) -> int:
        """What is remembered beside so many slots of every head."""
        policy, form = self.policy, self.forms[place]
        size = rows * form.heads * slots * self._running[place]
        if policy.when.decodes and not isinstance(policy.when, Pruning):
            queries = min(policy.score.queries(slots), self.columns)
            size += rows * queries * form.query_heads * form.key * form.dtype.itemsize
        return size

    @cached_property
    def _running(self) -> list[int]:
        """Bytes of a slot's running sums, of every layer."""
        known = {form: _running(self.policy, form) for form in set(self.forms)}
        return [known[form] for form in self.forms]

    # Once scores are known

    def fitted(self, scored: Sequence[Scored]) -> tuple[Sequence[Scored], Counts]:
        """The layers, and what each KV head keeps, within the bytes of these layers; with as many
        tokens as that takes, but no fewer than are always kept.

        Raises:
            InvalidBudget: those do not fit, and this is strict.
        """
        allowed, tokens = self._of(scored), scored[0].tokens
        counts = self.policy.budget(scored, tokens)
        if self._weigh(scored, counts) <= allowed:
            return scored, counts
        least = torch.stack([one.protected.amax(-1).cpu() for one in scored]).amax(0)

        def at(most: int) -> tuple[list[Scored], Counts]:
            fewer = tokens.clamp_max(max(1, most)).maximum(least.to(tokens.device))
            fewer = fewer.minimum(tokens)
            tried = [replace(one, tokens=fewer.to(one.tokens.device)) for one in scored]
            return tried, self.policy.budget(tried, tried[0].tokens)

        fitting = at(_largest(int(tokens.max()), lambda most: self._weigh(*at(most)) <= allowed))
        if self.strict and self._weigh(*fitting) > allowed:
            raise InvalidBudget(
                f"budget {self.policy.amount} does not hold what is always kept (observation "
                "window and sinks count inside the budget). Raise the budget or lower the window."
            )
        return fitting

    def _of(self, scored: Sequence[Scored]) -> int:
        """The bytes of these layers: all, or their share by what lengths tell."""
        if len(scored) == len(self.forms):
            return self.allowed
        if self._plan is None and len(set(self.forms)) == 1:
            return self.allowed // len(self.forms)
        slots, tokens = scored[0].layer.slots, int(scored[0].tokens.max())
        planned = self._foreseen(tokens, slots.lengths.tolist())
        each = [self.of_layer(place, counts) for place, counts in enumerate(planned)]
        mine = sum(each[one.layer.ordinal] for one in scored)
        # more than the share of the bytes only where the budget was raised beyond them
        return max(mine, self.allowed * mine // sum(each))

    def _weigh(self, scored: Sequence[Scored], counts: Counts) -> int:
        layers = zip(scored, counts, strict=True)
        return sum(self.of_layer(one.layer.ordinal, each.cpu()) for one, each in layers)


def _largest(end: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number below ``end`` that fits, by bisection; 0 where none does."""
    low = 0
    while end - low > 1:
        middle = (low + end) // 2
        low, end = (middle, end) if fits(middle) else (low, middle)
    return low


def check_form(expected: Form, actual: Form) -> None:
    """Raises UnsupportedModel where pairs are others than those that bytes were worked out for."""
    if actual != expected:
        raise UnsupportedModel(
            f"bytes were worked out for pairs of {expected}, as the model's configuration has "
            f"them, and {actual} came. Write the shares out instead of auto, such as keep=50% and "
            "bits=4."
        )


def _running(policy: Policy, form: Form) -> int:
    """Bytes of the running sums of one slot of a head, as a token of zeros shows."""
    if not (policy.running or policy.reads_again):
        return 0
    # no score declares how many sums it keeps of a slot, or of which type: one token tells
    layer = _token(form)
    state: dict[str, Tensor] = {}
    for each in policy.running:
        state |= each.observe(layer)
    if policy.reads_again is not None:
        # read again means a pass behind the prompt: a slot of the prompt, then one of the pass
        k, v = (t.expand(-1, -1, 2, -1) for t in (layer.k, layer.v))
        pos = layer.pos.new_tensor([[[0, 1]]])
        text = torch.full_like(pos, -1)
        slots = replace(layer.slots, pos=pos, q_pos=pos[:, 0, 1:], image=text, spot=text)
        state |= policy.reads_again.again(replace(layer, k=k, v=v, slots=slots, state=state))
    return sum(t.element_size() for t in state.values())


def _token(form: Form) -> Layer:
    """A prompt of one token, under one KV head."""
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
    norm = q.new_ones(1, 1)
    return Layer(q=q, k=k, v=v, slots=slots, scale=1.0, output_weight=weight, residual_norm=norm)
