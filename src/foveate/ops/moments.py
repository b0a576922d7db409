"""First and second moments of vectors, summed in double precision."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def moments(
    q: Float[Tensor, "b hq m d"], counted: Bool[Tensor, "b m"], groups: int
) -> dict[str, Tensor]:
    """Return the number of counted vectors, their sum, and the sum of their outer products.

    The keys are "count", "total" [h g d] and "products" [h g d d], for each of the ``groups`` query
    heads of a KV head.
    """
    heads = [head[counted].double() for head in q.transpose(0, 1)]
    sums = {
        "total": torch.stack([x.sum(0) for x in heads]),
        "products": torch.stack([x.T @ x for x in heads]),
    }
    by_group = {name: t.view(-1, groups, *t.shape[1:]) for name, t in sums.items()}
    return {"count": counted.sum().double(), **by_group}
