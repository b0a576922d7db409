"""Plain torch, in float32."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

EPSILON = 1e-12  # what a key of zeros is divided by


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
    """Products with the keys as they are: no direction is written out."""
    keys = k.float()
    norm = keys.norm(dim=-1)
    if not valid.all():
        keys = keys.masked_fill(~valid[..., None], 0.0)  # padding may hold anything
    tokens = valid.sum(-1)
    inverse = (1 / norm.clamp_min(EPSILON)).masked_fill(~valid, 0.0)  # key to its direction
    mean = inverse[:, :, None] @ keys / tokens[..., None, None]  # over all T (section 3.2)
    similarity = (keys @ mean.transpose(2, 3))[..., 0] * inverse
    return MixStatistics(norm, v.float().norm(dim=-1), -similarity, redundancy_of(mean, tokens))


def redundancy_of(
    mean: Float[Tensor, "b h 1 d"], tokens: Int[Tensor, "b h"]
) -> Float[Tensor, "b h"]:
    """Eq. 4, in O(T): from the length of the mean of T directions."""
    r = (tokens * mean.square().sum((-1, -2)) - 1) / (tokens - 1).clamp_min(1)
    return r.clamp_min(0.0)
