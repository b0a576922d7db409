"""Budgets that only tests need: random, so that no head, layer or row is like another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from foveate.policies.amount import Amount, AmountLike
from foveate.policies.spec import stage
from foveate.stages.budget.exact_totals import fill


def _drawn(count, generator):
    """The same whatever the process's default type and device."""
    return torch.rand(count, generator=generator, dtype=torch.float32, device="cpu")


@stage("test_random_heads")
@dataclass(frozen=True, kw_only=True)
class RandomHeads:
    """Random counts per head, and per layer with scope "model"; the total is exact."""

    amount: AmountLike
    scope: Literal["layer", "model"] = "layer"

    def __post_init__(self):
        object.__setattr__(self, "amount", Amount.of(self.amount))

    def __call__(self, scored, tokens):
        available = torch.stack([one.available for one in scored], 1)  # [b, layers, h]
        least = torch.stack([one.protected for one in scored], 1)
        counts = torch.empty_like(available)
        for row in range(len(tokens)):
            # a row's draw depends on the row alone, not on its place in the batch
            seed = 1000 * int(scored[0].layer.lengths[row]) + scored[0].layer.ordinal
            generator = torch.Generator().manual_seed(seed)
            most, low = available[row].flatten(), least[row].flatten()
            drawn = _drawn(most.numel(), generator).to(most.device)
            wish = (drawn * 2 * tokens[row]).long()
            total = int(tokens[row]) * most.numel()
            counts[row] = fill(wish, low, most, total).view_as(counts[row])
        return list(counts.unbind(1))


@stage("test_random_layers")
@dataclass(frozen=True, kw_only=True)
class RandomLayers:
    """Random counts per layer, the same for every head: dense storage, scope "model"."""

    amount: AmountLike
    scope: Literal["layer", "model"] = "model"

    def __post_init__(self):
        object.__setattr__(self, "amount", Amount.of(self.amount))

    def __call__(self, scored, tokens):
        layers, (b, h) = len(scored), scored[0].available.shape
        counts = scored[0].available.new_empty(b, layers)
        for row in range(b):
            generator = torch.Generator().manual_seed(int(scored[0].layer.lengths[row]))
            most = torch.stack([one.available[row].min() for one in scored])
            least = torch.stack([one.protected[row].max() for one in scored])
            wish = (_drawn(layers, generator).to(most.device) * 2 * tokens[row]).long()
            counts[row] = fill(wish, least, most, int(tokens[row]) * layers)
        return [c[:, None].expand(b, h).clone() for c in counts.unbind(1)]
