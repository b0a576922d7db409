"""A loop over the KV heads of a flat body, joined with a dense tail in one softmax."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.ops.softmax_n import softmax_n


def ragged_decode(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f e"],
    lengths: list[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float = 0.0,
) -> Float[Tensor, "b hq 1 e"]:
    """Attention of one query per row over its heads' bodies and tails; nothing is masked.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        flat_k: the bodies' keys, head after head, row after row.
        flat_v: their values.
        lengths: body length of each (row, KV head), in that order.
        tail_k: keys appended later, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.

    Softmax in float32; the products in the inputs' dtype.
    """
    b, hq, _, d = q.shape
    h, t, most = tail_k.shape[1], tail_k.shape[2], max(lengths)
    grouped = (q * scale).reshape(b * h, hq // h, d)
    logits = q.new_full((b * h, hq // h, most + t), -torch.inf)
    heads = zip(logits, grouped, torch.split(flat_k, lengths), lengths, strict=True)
    for into, queries, keys, length in heads:
        into[:, :length] = queries @ keys.t()
    logits[..., most:] = grouped @ tail_k.reshape(b * h, t, d).transpose(1, 2)
    weights = softmax_n(logits, n).to(q.dtype)
    bodies = zip(weights, torch.split(flat_v, lengths), lengths, strict=True)
    out = torch.stack([mine[:, :length] @ values for mine, values, length in bodies])
    late = weights[..., most:] @ tail_v.reshape(b * h, t, tail_v.shape[3])
    return (out + late).view(b, hq, 1, -1)
