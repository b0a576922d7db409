"""A policy applied to what has been read of a layer: score -> budget -> select -> merge.

``budget=auto(0.98)`` is as many pairs as hold that share of what the scores say matters: an easy
prompt keeps little, a hard one what it needs. The smallest budget is searched with which the
policy's own budget and selection keep that share of the importance: of one layer's, for policies
that compress layer by layer, and of all layers' together for those that wait for them. What is a
share of the budget (windows, recent tokens) is one of the floor, as nothing else is known before
the scores are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, not_finite, refuse_not_finite
from foveate.cache.pairs import DensePairs, RaggedPairs, store
from foveate.cache.slots import Slots, derived
from foveate.compression.byte_budget import Bytes
from foveate.errors import InvalidBudget, InvalidParameter
from foveate.policies.policy import Policy
from foveate.policies.protocols import AcrossLayers, EachByItself, NoMerge


@dataclass(frozen=True, eq=False)
class Kept:
    """What a policy keeps of one layer.

    ``scores`` are the raw scores, with +inf at protected and -inf at padded slots; None where the
    whole layer fits the budget and nothing was scored. ``told`` is what the budget gave each head,
    where the selection may keep fewer. If it is ``held``, the pairs are those that the engine has,
    and ``k`` and ``v`` tell their sizes alone.
    """

    mask: Bool[Tensor, "b h n"]
    scores: Float[Tensor, "b h n"] | None
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    counted: Int[Tensor, "b h"] | None = None  # ``counts``, if they are known
    told: Int[Tensor, "b h"] | None = None
    held: bool = False

    @cached_property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs kept per row and KV head."""
        return self.mask.sum(-1) if self.counted is None else self.counted

    def positions(self, row: int, head: int) -> Int[Tensor, "s"]:
        """Kept positions of one head, ascending, counted in the input as given."""
        return self.mask[row, head].nonzero()[:, 0]

    def keys(self, row: int, head: int) -> Float[Tensor, "s d"]:
        """Kept (and merged) keys of one head."""
        return self.k[row, head, self.mask[row, head]]

    def values(self, row: int, head: int) -> Float[Tensor, "s e"]:
        """Kept (and merged) values of one head."""
        return self.v[row, head, self.mask[row, head]]

    def store(self, columns: Int[Tensor, "b h n"], first: int) -> DensePairs | RaggedPairs:
        """The kept pairs alone, dense or ragged."""
        return store(self.k, self.v, columns, self.mask, first, self.counts)


def observed(policy: Policy, layer: Layer) -> Mapping[str, Tensor]:
    """The layer's running state after its queries have been seen."""
    state = dict(layer.state)
    for each in policy.running:
        state |= each.observe(layer)
    return state


def score(
    policy: Policy, layer: Layer, *, recompressed: bool = False, queries: int | None = None
) -> Scored | None:
    """The layer's scores with protected and padded slots marked; None if every row fits its budget
    (``layer.slots.tokens``). Not where it was compressed before, and is ``recompressed``: what a
    layer holds then may be fewer than that, and more than a budget that differs between layers
    gives it. ``queries`` are
    as many of the last ones as the score reads, if that is known.

    Raises:
        InvalidBudget: a row's budget is below what is protected in it.
        InvalidInput: keys, values or queries that are no numbers.
        InvalidParameter: scores that are no numbers.
    """
    slots, tokens = layer.slots, layer.slots.tokens
    if tokens is None or (slots.all_fits and not recompressed):
        return None
    least, always = _held_by(slots, policy)
    if queries is None:
        queries = policy.score.queries(slots.longest_budget)
    try:
        scores = policy.score(layer)
    except Exception:  # of what is no number a score may make an error of another library
        refuse_not_finite(layer, queries, policy)
        raise
    raw = scores.values.float()
    values = raw if slots.all_valid else raw.masked_fill(~slots.valid, -torch.inf)
    alone = recompressed and layer.q.shape[2] == 1
    _refuse_no_numbers(policy, layer, values.detach(), queries, alone=alone)
    scores = scores._replace(values=torch.maximum(values, least))
    after = layer.after_scoring(copied=policy.scope == "model")
    return Scored(after, scores, raw, tokens, always)


def _refuse_no_numbers(
    policy: Policy, layer: Layer, values: Float[Tensor, "b h n"], queries: int, *, alone: bool
) -> None:
    """In one question to the device, as long as there is no doubt. Where a token of an answer comes
    ``alone``, the scores have to tell: at each step, looking at all pairs would take too long.
    """
    highest = values.amax()  # which a NaN anywhere becomes
    if not alone:
        if not isnan(highest + not_finite(layer, queries)):
            return
        refuse_not_finite(layer, queries, policy)
    if isnan(highest):
        raise InvalidParameter(f"the scores of layer {layer.number} contain NaN: {policy}.")


class Protected(NamedTuple):
    """The least that a score counts as, infinite at slots that are kept whatever it is, minus
    infinite elsewhere (a maximum takes half of masked_fill's time); and how many are kept so.
    """

    least: Float[Tensor, "b h n"]
    counts: Int[Tensor, "b h"]


@derived
def protected(slots: Slots, policy: Policy) -> Protected:
    """What a policy always keeps of these slots, at their budget."""
    marked = policy.select.protect(slots) & slots.valid
    least = marked.new_full(marked.shape, -torch.inf, dtype=torch.float32)
    return Protected(least.masked_fill_(marked, torch.inf), marked.sum(-1))


@derived
def _held_by(slots: Slots, policy: Policy) -> Protected:
    """The same, where the budget holds it: not where one was to be taken as it is."""
    tokens = slots.lengths if slots.tokens is None else slots.tokens
    held = protected(slots, policy)
    counts = held.counts
    too_many = (counts > tokens[:, None]) & (slots.available > tokens[:, None])
    if bool(too_many.any()):
        row = int(too_many.any(-1).nonzero()[0, 0])
        raise InvalidBudget(
            f"budget {policy.amount} keeps {int(tokens[row])} of the "
            f"{int(slots.lengths[row])} tokens of row {row}, fewer than the "
            f"{int(counts[row].max())} that are always kept (observation window and "
            f"sinks count inside the budget). Raise the budget or lower the window."
        )
    return held


def keep(policy: Policy, scored: Sequence[Scored], within: Bytes | None = None) -> list[Kept]:
    """Budgets, selects and merges layers that have been scored; a budget in bytes ``within``
    them.
    """
    if policy.across_layers is not None:
        scored = _together(policy.across_layers, scored)
    if policy.amount.kind == "auto":
        scored, counts = holding(policy, scored)
    elif within is not None:
        scored, counts = within.fitted(scored)
    else:
        counts = policy.budget(scored, scored[0].tokens)
    _check_counts(policy, scored, counts, scored[0].tokens)
    kept = []
    for one, count in zip(scored, counts, strict=True):
        mask = policy.select(one, count)
        _check_mask(policy, one, mask, count)
        k, v = one.layer.k, one.layer.v
        if not isinstance(policy.merge, NoMerge):  # which would return the same
            k, v = policy.merge(one, mask)
        known, most = (None, count) if policy.spares else (count, None)
        kept.append(Kept(mask, one.scores.values, k, v, known, most, one.held))
    return kept


def _together(score: AcrossLayers, scored: Sequence[Scored]) -> list[Scored]:
    """The layers with their last values; what is always kept, or never, stays marked."""
    smoothed = []
    for one, raw in zip(scored, score.together(scored), strict=True):
        marked = one.scores.values
        values = torch.where(marked.isinf(), marked, raw)
        smoothed.append(replace(one, scores=one.scores._replace(values=values), raw=raw))
    return smoothed


def everything(layer: Layer) -> Kept:
    """All real tokens of a layer that fits its budget."""
    return Kept(layer.valid, None, layer.k, layer.v)


def _check_mask(
    policy: Policy, one: Scored, mask: Bool[Tensor, "b h n"], count: Int[Tensor, "b h"]
) -> None:
    """Selections keep what they were told to, whoever wrote the select stage."""
    held = mask.sum(-1)
    least = torch.minimum(held, count) if policy.spares else count
    if not torch.equal(held, least):
        raise InvalidParameter(
            f"{policy.select!r} kept {held.tolist()} slots instead of {count.tolist()} of layer "
            f"{one.layer.number}."
        )
    if not one.layer.slots.all_valid and bool((mask & ~one.layer.valid).any()):
        raise InvalidParameter(f"{policy.select!r} kept padding of layer {one.layer.number}.")


def _check_counts(
    policy: Policy,
    scored: Sequence[Scored],
    counts: Sequence[Int[Tensor, "b h"]],
    tokens: Int[Tensor, "b"],
) -> None:
    """Budgets are exact, whoever wrote the budget stage."""
    if policy.each_by_itself:
        requested = _total([of.sum(-1) for of in counts])
    elif policy.planned:
        requested = _total([policy.planned.pairs(one, tokens) for one in scored])
    else:
        heads = 0
        for one in scored:  # a loop, as every call counts here
            heads += one.layer.k.shape[1]
        requested = tokens * heads
    _check_totals(policy, scored, counts, requested)


def _check_totals(
    policy: Policy,
    scored: Sequence[Scored],
    counts: Sequence[Int[Tensor, "b h"]],
    requested: Int[Tensor, "b"],
) -> None:
    held, room, inside = [0] * len(requested), [0] * len(requested), True
    for of_rows, one in zip(counts, scored, strict=True):  # numbers: they are few
        most = one.layer.slots.available
        rows = zip(of_rows.tolist(), one.protected.tolist(), most.tolist(), strict=True)
        for row, (heads, lows, highs) in enumerate(rows):
            held[row] += sum(heads)
            room[row] += sum(highs)
            for low, count, high in zip(lows, heads, highs, strict=True):
                inside = inside and low <= count <= high
    total = requested.tolist()
    if held != list(map(min, total, room)) or not inside:
        raise InvalidParameter(
            f"{policy.budget!r} allocated {held} pairs of each row where {total} were asked for, "
            "or left a head outside its limits."
        )


def _total(of_layers: Sequence[Int[Tensor, "b"]]) -> Int[Tensor, "b"]:
    return sum(of_layers[1:], of_layers[0])


Counts = Sequence[Int[Tensor, "b h"]]


def holding(policy: Policy, scored: Sequence[Scored]) -> tuple[Sequence[Scored], Counts]:
    """The layers with the budget that was found for them, and what each KV head keeps."""
    share, budget = float(policy.amount.value), policy.budget
    least, most = _limits(policy, scored)
    if isinstance(budget, EachByItself):
        counts = [_within(one, budget.holding(one, share), least, most) for one in scored]
        return scored, counts
    weights = [matters(one) for one in scored]
    goal = share * _added([w.sum((1, 2)) for w in weights])
    # bisection, of all rows at once: a larger budget is taken to hold no less
    low, high = least.clone(), most
    while bool((low < high).any()):
        middle = (low + high) // 2
        enough = _held(policy, scored, weights, middle) >= goal - EPS * goal
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    budgets = [replace(one, tokens=low.to(one.tokens.device)) for one in scored]
    return budgets, budget(budgets, budgets[0].tokens)


EPS = 1e-9  # of sums in another order


def matters(one: Scored) -> Float[Tensor, "b h n"]:
    """The importance of each slot, from zero on: scores that can be negative (minus a norm) count
    from the lowest of their head. In float64; zero at padding.
    """
    importance, valid = one.importance.double(), one.layer.valid
    lowest = importance.amin(-1, keepdim=True).clamp_max(0.0)
    return (importance - lowest).masked_fill(~valid, 0.0)


def _held(
    policy: Policy,
    scored: Sequence[Scored],
    weights: Sequence[Float[Tensor, "b h n"]],
    tokens: Int[Tensor, "b"],
) -> Float[Tensor, "b"]:
    """The importance that is kept with this budget."""
    tried = [replace(one, tokens=tokens.to(one.tokens.device)) for one in scored]
    counts = policy.budget(tried, tried[0].tokens)
    masks = [policy.select(one, count) for one, count in zip(tried, counts, strict=True)]
    return _added([(w * m).sum((1, 2)) for w, m in zip(weights, masks, strict=True)])


def _limits(policy: Policy, scored: Sequence[Scored]) -> tuple[Int[Tensor, "b"], Int[Tensor, "b"]]:
    """Tokens of the floor, which hold what is always kept, and of the cap."""
    first = scored[0]
    cap, lengths = policy.amount.cap, first.layer.lengths.cpu()
    most = lengths if cap is None else cap.tokens(lengths, 0)
    protected = torch.stack([one.protected.amax(-1).cpu() for one in scored]).amax(0)
    least = torch.maximum(first.tokens.cpu(), protected).minimum(lengths)
    return least, torch.maximum(most.minimum(lengths), least)


def _within(
    one: Scored, counts: Int[Tensor, "b h"], least: Int[Tensor, "b"], most: Int[Tensor, "b"]
) -> Int[Tensor, "b h"]:
    ends = (end.to(counts.device)[:, None] for end in (least, most))
    bounded = counts.maximum(next(ends)).minimum(next(ends))
    return bounded.maximum(one.protected).minimum(one.available)


def _added(of_layers: Sequence[Float[Tensor, "b"]]) -> Float[Tensor, "b"]:
    """Over layers, which may be on several devices."""
    return torch.stack([t.cpu() for t in of_layers]).sum(0)
