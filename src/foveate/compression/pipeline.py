"""Application of a policy to a layer that was read: score -> budget -> select -> merge.

``budget=auto(0.98)`` keeps as many pairs as have that share of the total importance: an easy prompt
keeps few, a hard one more. The smallest budget is searched for which the policy's own budget and
selection keep that share, of one layer's importance for policies that compress layer by layer, and
of all layers' together for those that wait for them. Windows and recent tokens that are a share of
the budget are a share of the floor, because nothing else is known before scoring.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isnan
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.cache.layer import Layer, Scored, not_finite, refuse_not_finite
from foveate.cache.pairs import DensePairs, RaggedPairs, store
from foveate.cache.slots import Slots, derived
from foveate.compression.byte_budget import Bytes
from foveate.compression.groups import GroupChoice, Groups
from foveate.errors import InvalidBudget, InvalidParameter
from foveate.policies.policy import Policy
from foveate.policies.protocols import AcrossLayers, EachByItself, NoMerge


@dataclass(frozen=True, eq=False)
class Kept:
    """Pairs that a policy keeps of one layer.

    ``scores`` are the raw scores, with +inf at protected and -inf at padded slots; None if the
    layer fits its budget and nothing was scored. ``budgets`` is each head's budget if the selection
    may keep fewer. With ``is_stored`` the engine already stores these pairs, and ``k`` and
    ``v`` only have their shapes.
    """

    mask: Bool[Tensor, "b h n"]
    scores: Float[Tensor, "b h n"] | None
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    counted: Int[Tensor, "b h"] | None = None  # ``counts``, if already known
    budgets: Int[Tensor, "b h"] | None = None
    is_stored: bool = False

    @cached_property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs kept per row and KV head."""
        return self.mask.sum(-1) if self.counted is None else self.counted

    def positions(self, row: int, head: int) -> Int[Tensor, "s"]:
        """Return the kept positions of one head, ascending, counted in the padded input."""
        return self.mask[row, head].nonzero()[:, 0]

    def keys(self, row: int, head: int) -> Float[Tensor, "s d"]:
        """Return the kept (and merged) keys of one head."""
        return self.k[row, head, self.mask[row, head]]

    def values(self, row: int, head: int) -> Float[Tensor, "s e"]:
        """Return the kept (and merged) values of one head."""
        return self.v[row, head, self.mask[row, head]]

    def store(self, columns: Int[Tensor, "b h n"], first: int) -> DensePairs | RaggedPairs:
        """Store the kept pairs alone, dense or ragged."""
        return store(self.k, self.v, columns, self.mask, first, self.counts)


def observed(policy: Policy, layer: Layer) -> Mapping[str, Tensor]:
    """Return the layer's running state after all running scores have observed its queries."""
    state = dict(layer.state)
    for running_score in policy.running:
        state |= folded(layer, running_score.observe(layer.per_head))
    return state


def folded(layer: Layer, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return statistics of the heads that a score reads as those of the stored heads."""
    return {name: layer.folded(t) for name, t in state.items()}


def score(
    policy: Policy, layer: Layer, *, recompressed: bool = False, queries: int | None = None
) -> Scored | None:
    """Score a layer, and mark protected and padded slots.

    Args:
        policy: its score and selection are used.
        layer: its ``slots.tokens`` are the budget.
        recompressed: True if the layer was compressed before. Then it is scored even if it fits: it
            may have more pairs than a budget that differs between layers allows it.
        queries: number of the last queries that the score reads, if known.

    Returns:
        None if every row fits its budget, unless ``recompressed``.

    Raises:
        InvalidBudget: a row's budget is smaller than its protected slots.
        InvalidInput: keys, values or queries are NaN or infinite.
        InvalidParameter: scores are NaN.
    """
    slots, tokens = layer.slots, layer.slots.tokens
    if tokens is None or (slots.all_fits and not recompressed):
        return None
    least, always = _checked_protection(slots, policy)
    if queries is None:
        queries = policy.score.queries(slots.longest_budget)
    try:
        scores = policy.score(layer.per_head)
    except Exception:  # libraries that a score calls may raise at NaN: name the tensor first
        refuse_not_finite(layer.per_head, queries, policy)
        raise
    scores = scores._replace(values=layer.folded(scores.values), parts=folded(layer, scores.parts))
    raw = scores.values.float()
    values = raw if slots.all_valid else raw.masked_fill(~slots.valid, -torch.inf)
    alone = recompressed and layer.q.shape[2] == 1
    _refuse_not_finite(policy, layer.per_head, values.detach(), queries, alone=alone)
    scores = scores._replace(values=torch.maximum(values, least))
    after = layer.after_scoring(copied=policy.scope == "model")
    return Scored(after, scores, raw, tokens, always)


def _refuse_not_finite(
    policy: Policy, layer: Layer, values: Float[Tensor, "b h n"], queries: int, *, alone: bool
) -> None:
    """Refuse scores or tensors that are not finite, with one device sync if all are finite.

    For the single token of a decoding step (``alone``) only scores are checked: checking all pairs
    at each step would take too long.
    """
    highest = values.amax()  # NaN if any value is
    if not alone:
        if not isnan(highest + not_finite(layer, queries)):
            return
        refuse_not_finite(layer, queries, policy)
    if isnan(highest):
        raise InvalidParameter(f"the scores of layer {layer.number} contain NaN: {policy}.")


class Protected(NamedTuple):
    """Protection of slots.

    ``least`` is a lower bound of scores: +inf at slots that are always kept, -inf elsewhere (a
    maximum takes half the time of masked_fill). ``counts`` are protected slots per row and head.
    """

    least: Float[Tensor, "b h n"]
    counts: Int[Tensor, "b h"]


@derived
def protected(slots: Slots, policy: Policy) -> Protected:
    """Return the protection of the slots that a policy always keeps at their budget."""
    marked = policy.select.protect(slots) & slots.valid
    least = marked.new_full(marked.shape, -torch.inf, dtype=torch.float32)
    return Protected(least.masked_fill_(marked, torch.inf), marked.sum(-1))


@derived
def _checked_protection(slots: Slots, policy: Policy) -> Protected:
    """Return the protection of the slots; raises InvalidBudget if a row's budget is smaller."""
    tokens = slots.lengths if slots.tokens is None else slots.tokens
    protection = protected(slots, policy)
    counts = protection.counts
    too_many = (counts > tokens[:, None]) & (slots.available > tokens[:, None])
    if bool(too_many.any()):
        row = int(too_many.any(-1).nonzero()[0, 0])
        raise InvalidBudget(
            f"budget {policy.amount} keeps {int(tokens[row])} of the "
            f"{int(slots.lengths[row])} tokens of row {row}, fewer than the "
            f"{int(counts[row].max())} that are always kept (observation window and "
            f"sinks count inside the budget). Raise the budget or lower the window."
        )
    return protection


def _chosen(policy: Policy, scored: Scored, count: Int[Tensor, "b h"]) -> GroupChoice:
    mask = policy.select(scored, count)
    _check_mask(policy, scored, mask, count)
    return GroupChoice(mask, count, scored.scores.values)


def keep(
    policy: Policy,
    scored: Sequence[Scored],
    within: Bytes | None = None,
    groups: Groups | None = None,
) -> list[Kept]:
    """Budget, select and merge scored layers; ``within`` are the bytes of a budget in bytes, and
    ``groups`` the layers that keep one set.
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
    if groups is not None:
        counts = groups.even(scored, counts)
    kept = []
    for scored_layer, count in zip(scored, counts, strict=True):
        layer, choose = scored_layer.layer, partial(_chosen, policy, scored_layer, count)
        mask, count, scores = choose() if groups is None else groups.choice(layer, choose)
        k, v = layer.k, layer.v
        if not isinstance(policy.merge, NoMerge):
            k, v = policy.merge(scored_layer, mask)
        exact, limit = (None, count) if policy.spares else (count, None)
        kept.append(Kept(mask, scores, k, v, exact, limit, scored_layer.is_stored))
    return kept


def _together(score: AcrossLayers, scored: Sequence[Scored]) -> list[Scored]:
    """Return the layers with their final values; infinite marks stay."""
    smoothed = []
    for scored_layer, raw in zip(scored, score.together(scored), strict=True):
        marked = scored_layer.scores.values
        values = torch.where(marked.isinf(), marked, raw)
        smoothed.append(
            replace(scored_layer, scores=scored_layer.scores._replace(values=values), raw=raw)
        )
    return smoothed


def everything(layer: Layer) -> Kept:
    """Return all real tokens of a layer that fits its budget."""
    return Kept(layer.valid, None, layer.k, layer.v)


def _check_mask(
    policy: Policy, scored: Scored, mask: Bool[Tensor, "b h n"], count: Int[Tensor, "b h"]
) -> None:
    """Check that a selection, from any author, keeps as many slots as its budget says."""
    kept = mask.sum(-1)
    expected = torch.minimum(kept, count) if policy.spares else count
    if not torch.equal(kept, expected):
        raise InvalidParameter(
            f"{policy.select!r} kept {kept.tolist()} slots instead of {count.tolist()} of layer "
            f"{scored.layer.number}."
        )
    if not scored.layer.slots.all_valid and bool((mask & ~scored.layer.valid).any()):
        raise InvalidParameter(f"{policy.select!r} kept padding of layer {scored.layer.number}.")


def _check_counts(
    policy: Policy,
    scored: Sequence[Scored],
    counts: Sequence[Int[Tensor, "b h"]],
    tokens: Int[Tensor, "b"],
) -> None:
    """Check that a budget, from any author, adds up exactly."""
    if policy.each_by_itself:
        requested = _total([count.sum(-1) for count in counts])
    elif policy.planned:
        requested = _total([policy.planned.pairs(scored_layer, tokens) for scored_layer in scored])
    else:
        heads = 0
        for scored_layer in scored:  # a loop: faster than sum(), and decoding runs it per layer
            heads += scored_layer.layer.k.shape[1]
        requested = tokens * heads
    _check_totals(policy, scored, counts, requested)


def _check_totals(
    policy: Policy,
    scored: Sequence[Scored],
    counts: Sequence[Int[Tensor, "b h"]],
    requested: Int[Tensor, "b"],
) -> None:
    allocated, room, inside = [0] * len(requested), [0] * len(requested), True
    for layer_counts, scored_layer in zip(counts, scored, strict=True):  # few: on the host
        available = scored_layer.layer.slots.available
        rows = zip(
            layer_counts.tolist(), scored_layer.protected.tolist(), available.tolist(), strict=True
        )
        for row, (heads, lows, highs) in enumerate(rows):
            allocated[row] += sum(heads)
            room[row] += sum(highs)
            for low, count, high in zip(lows, heads, highs, strict=True):
                inside = inside and low <= count <= high
    total = requested.tolist()
    if allocated != list(map(min, total, room)) or not inside:
        raise InvalidParameter(
            f"{policy.budget!r} allocated {allocated} pairs of each row instead of {total}, or a "
            "head's count is outside its limits."
        )


def _total(of_layers: Sequence[Int[Tensor, "b"]]) -> Int[Tensor, "b"]:
    return sum(of_layers[1:], of_layers[0])


Counts = Sequence[Int[Tensor, "b h"]]


def holding(policy: Policy, scored: Sequence[Scored]) -> tuple[Sequence[Scored], Counts]:
    """Find the smallest budget with the auto amount's share of importance, and its counts."""
    share, budget = float(policy.amount.value), policy.budget
    least, cap = _limits(policy, scored)
    if isinstance(budget, EachByItself):
        counts = [
            _within(scored_layer, budget.holding(scored_layer, share), least, cap)
            for scored_layer in scored
        ]
        return scored, counts
    weights = [matters(scored_layer) for scored_layer in scored]
    goal = share * _sum_of_layers([w.sum((1, 2)) for w in weights])
    # bisection of all rows at once, assuming that a larger budget keeps no less
    low, high = least.clone(), cap
    while bool((low < high).any()):
        middle = (low + high) // 2
        enough = _kept_importance(policy, scored, weights, middle) >= goal - EPS * goal
        low, high = torch.where(enough, low, middle + 1), torch.where(enough, middle, high)
    budgets = [
        replace(scored_layer, tokens=low.to(scored_layer.tokens.device)) for scored_layer in scored
    ]
    return budgets, budget(budgets, budgets[0].tokens)


EPS = 1e-9  # relative error of sums in another order


def matters(scored: Scored) -> Float[Tensor, "b h n"]:
    """Return the importance of each slot in float64, at least zero; zero at padding.

    If a head has negative scores (such as minus a norm), its lowest counts as zero.
    """
    importance, valid = scored.importance.double(), scored.layer.valid
    lowest = importance.amin(-1, keepdim=True).clamp_max(0.0)
    return (importance - lowest).masked_fill(~valid, 0.0)


def _kept_importance(
    policy: Policy,
    scored: Sequence[Scored],
    weights: Sequence[Float[Tensor, "b h n"]],
    tokens: Int[Tensor, "b"],
) -> Float[Tensor, "b"]:
    """Return the importance that is kept with this budget, per row."""
    at_budget = [
        replace(scored_layer, tokens=tokens.to(scored_layer.tokens.device))
        for scored_layer in scored
    ]
    counts = policy.budget(at_budget, at_budget[0].tokens)
    masks = [
        policy.select(scored_layer, count)
        for scored_layer, count in zip(at_budget, counts, strict=True)
    ]
    return _sum_of_layers([(w * m).sum((1, 2)) for w, m in zip(weights, masks, strict=True)])


def _limits(policy: Policy, scored: Sequence[Scored]) -> tuple[Int[Tensor, "b"], Int[Tensor, "b"]]:
    """Return the tokens of the floor, raised to what is always kept, and of the cap."""
    first = scored[0]
    cap, lengths = policy.amount.cap, first.layer.lengths.cpu()
    upper = lengths if cap is None else cap.tokens(lengths, 0)
    protected = torch.stack(
        [scored_layer.protected.amax(-1).cpu() for scored_layer in scored]
    ).amax(0)
    lower = torch.maximum(first.tokens.cpu(), protected).minimum(lengths)
    return lower, torch.maximum(upper.minimum(lengths), lower)


def _within(
    scored: Scored, counts: Int[Tensor, "b h"], lower: Int[Tensor, "b"], upper: Int[Tensor, "b"]
) -> Int[Tensor, "b h"]:
    ends = (limit.to(counts.device)[:, None] for limit in (lower, upper))
    bounded = counts.maximum(next(ends)).minimum(next(ends))
    return bounded.maximum(scored.protected).minimum(scored.available)


def _sum_of_layers(of_layers: Sequence[Float[Tensor, "b"]]) -> Float[Tensor, "b"]:
    """Add up tensors of layers, which may be on several devices."""
    return torch.stack([t.cpu() for t in of_layers]).sum(0)
