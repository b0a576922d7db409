"""One query over pairs that it all sees: what it pays to each is what its attention is made of."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def attention_of_one(
    q: Float[Tensor, "b hq 1 d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
) -> tuple[Float[Tensor, "b hq 1 e"], Float[Tensor, "b hq n"]]:
    """Attention, and its weights, which are the column sums of one query; in float32. The query
    heads of a KV head are rows of one product. In any order of the pairs.
    """
    b, hq, _, d = q.shape
    grouped = q.reshape(b, k.shape[1], -1, d).float() * scale
    weights = (grouped @ k.float().transpose(2, 3)).softmax(-1)
    out = weights @ v.float()
    return out.view(b, hq, 1, -1), weights.view(b, hq, -1)
