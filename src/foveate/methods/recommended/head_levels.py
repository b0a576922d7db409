"""Number of pairs of each head, known before a prompt is read.

It is the head's average share of all heads' best pairs in the prompts of a profile.
"""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.policies.method import stage
from foveate.policies.protocols import Scope
from foveate.profiles.tensor_profile import TensorProfile, load_tensors
from foveate.stages.budget.bases import ByLength, Rule
from foveate.stages.budget.exact_totals import filled
from foveate.stages.budget.head_table import ByHead

LEVELS = 256
"""Number of equal shares that a head's pairs are cut into."""


def levels(values: Float[Tensor, "h n"]) -> Float[Tensor, "h 256"]:
    """Return the middle value of each of a head's ``LEVELS`` shares of its pairs, descending.

    Between two pairs it is interpolated.
    """
    middles = (torch.arange(LEVELS, device=values.device, dtype=values.dtype) + 0.5) / LEVELS
    ranks = (middles * values.shape[-1] - 0.5).clamp(0, values.shape[-1] - 1)
    ranked = values.sort(dim=-1, descending=True).values
    below = ranks.floor().long()
    above = (below + 1).clamp_max(values.shape[-1] - 1)
    return ranked[:, below].lerp(ranked[:, above], ranks - below)


@stage("head_levels")
class HeadLevels(ByHead):
    """Budget that gives each head its average share of all heads' best pairs.

    The shares follow from the ``levels`` of a ``profile``, a file of tensors of the method named
    ``of``. So the numbers are known before a prompt is read, and layers can be compressed one by
    one.
    """

    @property
    def calibrated(self) -> TensorProfile:
        """Profile in use."""
        return load_tensors(self.profile, self.of)

    def by_head(self, depth: int, heads: int) -> Rule:
        profile = self.calibrated
        profile.check_layers(depth)
        for layer, tensors in enumerate(profile.by_layer):
            if len(tensors["levels"]) != heads:
                raise profile.mismatch(
                    f"of {profile.model!r} has {len(tensors['levels'])} KV heads in layer {layer}, "
                    f"the model {heads}"
                )
        return LevelCounts(self.profile, self.of)


class LevelCounts(NamedTuple):
    """Rule of :class:`HeadLevels` for one profile; hashable."""

    profile: str
    of: str

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Return each KV head's tokens for a prompt of ``length``, ``tokens`` on average."""
        return _counts(load_tensors(self.profile, self.of), tokens, protected, length)


@lru_cache(maxsize=256)
def _counts(profile: TensorProfile, tokens: int, protected: int, length: int) -> tuple[int, ...]:
    """Count each head's shares among the best of all heads, then adjust to the exact total."""
    wish = (_best(profile, tokens, length).sum(-1).double() * length / LEVELS).round().long()
    low, high = [min(protected, length)] * len(wish), [length] * len(wish)
    return tuple(filled(wish.tolist(), low, high, tokens * len(wish)))


def _best(profile: TensorProfile, tokens: int, length: int) -> Bool[Tensor, "Lh 256"]:
    """Mark the best levels of all heads together, as many as the budget's share of all pairs."""
    table = torch.cat([tensors["levels"] for tensors in profile.by_layer])
    number = min(table.numel(), round(table.numel() * tokens / length))
    best = table.new_zeros(table.numel(), dtype=torch.bool)
    best[table.flatten().topk(number).indices] = True
    return best.view_as(table)


@stage("layer_levels")
class LayerLevels(ByLength):
    """Budget of one number per layer: the mean share of its heads under :class:`HeadLevels`.

    ``profile`` is a file of tensors of the method named ``of``. Heads of a layer keep equal
    numbers, which engines with one block table for all heads store without gaps.
    """

    profile: str
    of: str
    scope: Scope = field(default="layer", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        load_tensors(self.profile, self.of)

    def by_length(self, depth: int) -> Rule:
        load_tensors(self.profile, self.of).check_layers(depth)
        return LayerCounts(self.profile, self.of)


class LayerCounts(NamedTuple):
    """Rule of a profile over layers, for prompts of any length."""

    profile: str
    of: str

    def __call__(self, tokens: int, protected: int, length: int) -> tuple[int, ...]:
        """Return the tokens of each layer of a prompt of ``length``, ``tokens`` on average."""
        return _layer_counts(load_tensors(self.profile, self.of), tokens, protected, length)


@lru_cache(maxsize=256)
def _layer_counts(
    profile: TensorProfile, tokens: int, protected: int, length: int
) -> tuple[int, ...]:
    """Return the mean share of each layer's heads, as counts that add up to the budget."""
    depth = len(profile.by_layer)
    shares = _best(profile, tokens, length).double().mean(-1).view(depth, -1).mean(-1)
    wish = (shares * length).round().long().tolist()
    low, high = [min(protected, length)] * depth, [length] * depth
    return tuple(filled(wish, low, high, tokens * depth))
