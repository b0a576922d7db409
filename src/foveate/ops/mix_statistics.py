"""Norms, diversity and redundancy of keys and values, in plain torch, in float32."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.linalg import vector_norm

from foveate.ops.choice import Impl, operator
from foveate.ops.numbers import numbers

EPSILON = 1e-12  # lower bound of norms: a key of zeros is divided by it


class MixStatistics(NamedTuple):
    """Statistics of MixKV.

    ``diversity`` is minus the similarity of a key's direction to the mean direction of all keys,
    zero at slots without a token. ``redundancy`` is the mean cosine of all pairs of different keys,
    which may be negative. Norms are L2 norms of every slot.
    """

    of_slots: Float[Tensor, "3 b h n"]
    """Key norms, value norms and diversity, in this order."""
    redundancy: Float[Tensor, "b h"]

    @property
    def key_norm(self) -> Float[Tensor, "b h n"]:
        return self.of_slots[0]

    @property
    def value_norm(self) -> Float[Tensor, "b h n"]:
        return self.of_slots[1]

    @property
    def diversity(self) -> Float[Tensor, "b h n"]:
        return self.of_slots[2]


@operator
def mix_statistics(
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    valid: Bool[Tensor, "b h n"] | None = None,
    *,
    impl: Impl | None = None,
) -> MixStatistics:
    """Compute all statistics together, in float32, head by head.

    The reference multiplies with the keys directly, and stores no directions. The kernel reads
    values once and keys twice, because diversity needs the mean of all keys first.

    Args:
        k: keys.
        v: values.
        valid: True at slots with a token, at least one per head; None: all of them.
        impl: see :func:`foveate.ops.choice.operator`, also for the errors.

    Source: MixKV (arXiv:2510.20707), section 3.2 and equation 4.
    """
    keys = numbers(k)
    of_slots = k.new_empty(3, *k.shape[:3], dtype=torch.float32)
    norm, value_norm, diversity = of_slots.unbind()
    vector_norm(keys, dim=-1, out=norm)
    inverse = norm.clamp_min(EPSILON).reciprocal_()  # key * inverse is its direction
    tokens: int | Tensor = k.shape[2]
    if valid is not None:  # padding may contain any numbers
        tokens = valid.sum(-1, keepdim=True)
        keys, inverse = keys.masked_fill(~valid[..., None], 0.0), inverse.masked_fill(~valid, 0.0)
    by_head, directions = keys.flatten(0, 1), inverse.flatten(0, 1)[:, None]
    total = torch.bmm(directions, by_head)  # T times the mean direction
    r = redundancy_of(torch.bmm(total, total.mT).view(keys.shape[:2]), tokens)  # MixKV eq. 3
    total.view(*keys.shape[:2], -1).div_(-tokens)
    likeness = torch.bmm(total, by_head.mT).view(inverse.shape)
    torch.mul(likeness, inverse, out=diversity)  # section 3.2
    vector_norm(numbers(v), dim=-1, out=value_norm)  # last: it evicts the keys from the CPU's cache
    return MixStatistics(of_slots, r)


def redundancy_of(
    products: Float[Tensor, "b h"], tokens: int | Int[Tensor, "b h 1"]
) -> Float[Tensor, "b h"]:
    """Compute MixKV's eq. 4 in O(T).

    ``products`` are the product of the sum of T directions with itself: the sum of the cosines of
    all pairs, including those of a key with itself.
    """
    if isinstance(tokens, int):
        return (products - tokens) / (tokens * max(tokens - 1, 1))
    tokens = tokens[..., 0]
    return (products - tokens) / (tokens * (tokens - 1).clamp_min(1))
