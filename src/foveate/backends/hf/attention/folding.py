"""One query per row over the pairs of grouped heads, with the groups folded into the query axis.

The query heads that share a KV head become queries of one head, so keys and values are read once
for all of them; with ``enable_gqa``, or with keys repeated for a mask, they are read once for each.
Results differ by rounding.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from foveate.backends.hf.attention.by_products import ModelAttention

MANY_GROUPS, MANY_PAIRS = 4, 4096  # of float32


def folds(attention: ModelAttention, q: Tensor, k: Tensor) -> bool:
    """Whether folding is possible and faster: on a CPU, in types of 16 bits 3 to 12 times, in
    float32 1.2 to 4 times with 4 groups or more, and with 3 from some 4,000 pairs on. There a head
    is a thread's work, and in float32 several threads that each read the keys are faster than one
    that reads them for all. Other devices have kernels that know groups, and keep them.
    """
    (b, hq, m, _), h, n = q.shape, k.shape[1], k.shape[2]
    if not attention.is_sdpa or m > 1 or hq == h or q.device.type != "cpu":
        return False
    if q.dtype != torch.float32:
        return True
    return (hq >= MANY_GROUPS * h or n >= MANY_PAIRS) and _threads() <= b * h


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _threads() -> int:  # a traced step cannot ask
    return torch.get_num_threads()


def folded(
    q: Float[Tensor, "b hq 1 d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    visible: Bool[Tensor, "b #h 1 n"] | None = None,
) -> Float[Tensor, "b 1 hq e"]:
    """Their attention, as transformers lays it out. None as the mask shows every pair."""
    b, hq, _, d = q.shape
    h = k.shape[1]
    grouped = q.reshape(b, h, hq // h, d)
    out: Tensor = scaled_dot_product_attention(grouped, k, v, attn_mask=visible, scale=scale)
    return out.reshape(b, 1, hq, v.shape[3])
