"""Number of pairs of each head, known before a prompt is read.

It is the head's average share of all heads' best pairs in the prompts of a profile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.policies.method import stage
from foveate.profiles.tensor_profile import TensorProfile, load_tensors
from foveate.stages.budget.bases import Rule
from foveate.stages.budget.exact import filled
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
    table = torch.cat([tensors["levels"] for tensors in profile.by_layer])
    number = min(table.numel(), round(table.numel() * tokens / length))
    best = table.new_zeros(table.numel(), dtype=torch.bool)
    best[table.flatten().topk(number).indices] = True
    wish = (best.view_as(table).sum(-1).double() * length / LEVELS).round().long().tolist()
    low, high = [min(protected, length)] * len(wish), [length] * len(wish)
    return tuple(filled(wish, low, high, tokens * len(wish)))
