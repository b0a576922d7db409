"""Pairs whose columns do not follow each other, as they come where some tokens are not computed."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.cache.pairs.dense import DensePairs, Padded


def listed(
    held: Padded | None,
    k: Float[Tensor, "b h m d"],
    v: Float[Tensor, "b h m e"],
    columns: Int[Tensor, "b h m"],
    first: int,
) -> DensePairs:
    """The pairs ``held`` (None: none) and new ones of these ``columns``, -1 where there is none;
    heads that have fewer than others have empty slots in front. ``first`` is the column of the next
    token. Other pairs than dense ones are held opened: until the prompt has been read.
    """
    if held is None:
        return DensePairs(k, v, columns, first)
    k, v = torch.cat([held.k, k], dim=2), torch.cat([held.v, v], dim=2)
    columns = torch.cat([held.columns.to(columns), columns], dim=2)
    real = columns >= 0
    longest = max(1, int(real.sum(-1).max()))
    if longest < columns.shape[2]:
        order = real.long().argsort(dim=2, stable=True)[:, :, -longest:]
        columns = columns.gather(2, order)
        k, v = (t.gather(2, order[..., None].expand(-1, -1, -1, t.shape[3])) for t in (k, v))
    return DensePairs(k, v, columns, first)
