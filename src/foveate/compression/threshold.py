"""``budget=auto(0.98)``: as many pairs as hold that share of what the scores say matters.

An easy prompt keeps little, a hard one what it needs. The smallest budget is searched with which
the policy's own budget and selection keep that share of the importance: of one layer's, for
policies that compress layer by layer, and of all layers' together for those that wait for them.
What is a share of the budget (windows, recent tokens) is one of the floor, as nothing else is known
before the scores are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.policies.policy import Policy
from foveate.policies.protocols import EachByItself

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
