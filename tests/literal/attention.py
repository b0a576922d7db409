"""What all five papers start from: causal attention, and the best of a list."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def attention(q: Float[Tensor, "hq t d"], k: Float[Tensor, "h t d"]) -> Float[Tensor, "hq t t"]:
    """Softmax of q k^T / sqrt(D) over the causal row, zeros behind it; float64.

    Query head i reads the keys of KV head i // G.
    """
    query_heads, tokens, width = q.shape
    group = query_heads // k.shape[0]
    rows = torch.zeros(query_heads, tokens, tokens, dtype=torch.float64)
    for head in range(query_heads):
        keys = k[head // group].double()
        for i in range(tokens):
            logits = keys[: i + 1] @ q[head, i].double() / math.sqrt(width)
            rows[head, i, : i + 1] = logits.softmax(0)
    return rows


def top(scores: Sequence[float], count: int) -> list[int]:
    """The indices of the ``count`` highest, best first; of equal scores the earlier wins."""
    assert count >= 0, f"cannot choose {count}"
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]
