"""Plain torch, in float32."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.linalg import vector_norm

from foveate.ops.numbers import numbers

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
    k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"], valid: Bool[Tensor, "b h n"] | None
) -> MixStatistics:
    """Products with the keys as they are: no direction is written out."""
    keys = numbers(k)
    norm = vector_norm(keys, dim=-1)
    inverse = norm.clamp_min(EPSILON).reciprocal_()  # what makes a key its direction
    tokens: int | Tensor = k.shape[2]
    if valid is not None:  # padding may hold anything
        tokens = valid.sum(-1, keepdim=True)
        keys, inverse = keys.masked_fill(~valid[..., None], 0.0), inverse.masked_fill(~valid, 0.0)
    by_head, directions = keys.flatten(0, 1), inverse.flatten(0, 1)[:, None]
    # minus the mean over all T (section 3.2)
    opposite = torch.bmm(directions, by_head).view(*keys.shape[:2], -1) / -tokens
    diversity = torch.bmm(opposite.flatten(0, 1)[:, None], by_head.mT).view(inverse.shape)
    r, diversity = redundancy_of(opposite, tokens), diversity.mul_(inverse)
    # at last: until then the cache is the keys'
    return MixStatistics(norm, vector_norm(numbers(v), dim=-1), diversity, r)


def redundancy_of(
    mean: Float[Tensor, "b h d"], tokens: int | Int[Tensor, "b h 1"]
) -> Float[Tensor, "b h"]:
    """Eq. 4, in O(T): from the length of the mean of T directions."""
    others = max(tokens - 1, 1) if isinstance(tokens, int) else (tokens - 1).clamp_min(1)
    length = vector_norm(mean, dim=-1, keepdim=True)
    r: Tensor = (tokens * length * length - 1) / others
    return r[..., 0].clamp_min(0.0)
