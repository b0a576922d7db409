"""Plain torch, in float32."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


class MixStatistics(NamedTuple):
    """``diversity`` is minus the similarity of a key's direction to the mean direction of all, zero
    at slots without a token; ``redundancy`` the mean cosine of all pairs of different keys, not
    below zero. Norms are L2 norms, of every slot.
    """

    key_norm: Float[Tensor, "b h n"]
    value_norm: Float[Tensor, "b h n"]
    diversity: Float[Tensor, "b h n"]
    redundancy: Float[Tensor, "b h"]


def mix_statistics(
    k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], valid: Bool[Tensor, "b h n"]
) -> MixStatistics:
    """Directions of all keys are held at once."""
    directions, mean = mean_direction(k, valid)
    return MixStatistics(
        k.float().norm(dim=-1),
        v.float().norm(dim=-1),
        -(directions * mean).sum(-1),
        redundancy_of(mean, valid),
    )


def mean_direction(
    k: Float[Tensor, "b h n d"], valid: Bool[Tensor, "b h n"]
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h 1 d"]]:
    """The keys' directions, and their mean over all T tokens (section 3.2)."""
    directions = F.normalize(k.float(), dim=-1).masked_fill(~valid[..., None], 0.0)
    return directions, directions.sum(2, keepdim=True) / valid.sum(-1)[..., None, None]


def redundancy_of(
    mean: Float[Tensor, "b h 1 d"], valid: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h"]:
    """Eq. 4, in O(T): from the length of the mean of T directions."""
    tokens = valid.sum(-1)
    r = (tokens * mean.square().sum((-1, -2)) - 1) / (tokens - 1).clamp_min(1)
    return r.clamp_min(0.0)
