"""From query heads to KV heads: one score per KV head."""

from __future__ import annotations

from functools import reduce
from typing import Literal

from jaxtyping import Float
from torch import Tensor

Reduction = Literal["mean", "max"]


def over_group(scores: Float[Tensor, "b h g n"], how: Reduction) -> Float[Tensor, "b h n"]:
    """Mean or maximum over the query heads that share a KV head."""
    if how == "max":
        return scores.amax(2)
    first, *others = scores.unbind(2)  # few: mean would share them out to threads
    return reduce(Tensor.add_, others, first.clone()).div_(len(others) + 1)
