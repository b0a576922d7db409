"""A loop over the KV heads of a flat body, joined with a dense tail in one softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.ops.softmax_n import softmax_n


def ragged_decode(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f e"],
    lengths: Sequence[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float,
    starts: Int[Tensor, "heads"] | None = None,
    longest: int | None = None,
    tail_length: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """The products are in the inputs' dtype. ``starts`` and ``longest`` are not needed."""
    if tail_length is not None:
        counted = int(tail_length)
        tail_k, tail_v = tail_k[:, :, :counted], tail_v[:, :, :counted]
    b, hq, _, d = q.shape
    h, t = tail_k.shape[1], tail_k.shape[2]
    grouped = (q * scale).reshape(b * h, hq // h, d)
    late_logits = (grouped @ tail_k.reshape(b * h, t, d).transpose(1, 2)).float()
    out, late_weights = [], []
    start = 0
    for head, length in enumerate(lengths):
        end = start + length
        logits = torch.cat([(grouped[head] @ flat_k[start:end].t()).float(), late_logits[head]], -1)
        weights = softmax_n(logits, n)
        late_weights.append(weights[:, length:])
        out.append(weights[:, :length].to(q.dtype) @ flat_v[start:end])
        start = end
    late = torch.stack(late_weights).to(q.dtype) @ tail_v.reshape(b * h, t, tail_v.shape[3])
    return (torch.stack(out) + late).view(b, hq, 1, -1)
