"""Attention of query heads that share a KV head, without a copy of keys and values for each.

transformers repeats keys and values, and a mask that differs between heads, for every query head as
soon as there is a mask. One query per row is folded: the query heads of a KV head become queries of
one head, which reads its keys and values once for all of them (results differ by rounding). Several
queries are computed KV head by KV head, over views (results are equal, bit for bit).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from foveate.hf.attention.by_products import ModelAttention

MANY_GROUPS, MANY_PAIRS = 4, 4096  # from which on folding is faster in float32


def folds(attention: ModelAttention, q: Tensor, k: Tensor) -> bool:
    """Return True if folding is possible and faster: on a CPU, 3 to 12 times in 16-bit dtypes, in
    float32 1.2 to 4 times with 4 groups or more, and with 3 from about 4,000 pairs on. There each
    thread computes a head, and in float32 several threads that each read the keys are faster than
    one that reads them for all heads. Other devices have kernels that know groups, so they never
    fold.
    """
    (b, hq, m, _), h, n = q.shape, k.shape[1], k.shape[2]
    if not attention.is_sdpa or m > 1 or hq == h or q.device.type != "cpu":
        return False
    if q.dtype != torch.float32:
        return True
    return (hq >= MANY_GROUPS * h or n >= MANY_PAIRS) and _threads() <= b * h


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _threads() -> int:  # torch.compile cannot trace this call
    return torch.get_num_threads()


def attend_folded(
    q: Float[Tensor, "b hq 1 d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    visible: Bool[Tensor, "b #h 1 n"] | None = None,
) -> Float[Tensor, "b 1 hq e"]:
    """Compute the attention of one query per row, in transformers' layout. ``visible`` None: the
    query sees every pair.
    """
    b, hq, _, d = q.shape
    h = k.shape[1]
    grouped = q.reshape(b, h, hq // h, d)
    out: Tensor = scaled_dot_product_attention(grouped, k, v, attn_mask=visible, scale=scale)
    return out.reshape(b, 1, hq, v.shape[3])


def splits_heads(attention: ModelAttention, q: Tensor, k: Tensor) -> bool:
    """Return True if several queries are computed KV head by KV head. On a CPU that takes 0.4 to
    0.7 of the time, and no memory for copies, with 3 and 7 groups; on other devices it was not
    measured.
    """
    (_, hq, m, _), h = q.shape, k.shape[1]
    return attention.is_sdpa and m > 1 and hq > h and q.device.type == "cpu"


def attend_by_head(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    visible: Bool[Tensor, "b #h m n"] | Float[Tensor, "b #h m n"],
) -> Float[Tensor, "b m hq e"]:
    """Compute the attention under a boolean or additive mask, in transformers' layout."""
    groups = q.shape[1] // k.shape[1]
    outs = []
    for i, of_head in enumerate(torch.split(q, groups, dim=1)):
        own_k, own_v = (t[:, i : i + 1].expand(-1, groups, -1, -1) for t in (k, v))
        mask = visible if visible.shape[1] == 1 else visible[:, i : i + 1]
        outs.append(
            scaled_dot_product_attention(of_head, own_k, own_v, attn_mask=mask, scale=scale)
        )
    return torch.cat(outs, dim=1).transpose(1, 2)
