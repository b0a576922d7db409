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
    """The products are in the inputs' dtype. ``starts`` and ``longest`` are not needed. Nothing is
    asked of the device, so that a step can be captured: what does not count of a tail is masked.
    """
    b, hq, _, d = q.shape
    h, t, most = tail_k.shape[1], tail_k.shape[2], max(lengths)
    queries = (q * scale).reshape(b * h, hq // h, d).transpose(1, 2)
    logits = q.new_full((b * h, most + t, hq // h), -torch.inf)
    for head, keys in enumerate(torch.split(flat_k, [*lengths])):
        # keys first: few queries against many keys is up to three times as slow the other way round
        logits[head, : lengths[head]] = keys @ queries[head]
    logits[:, most:] = tail_k.reshape(b * h, t, d) @ queries
    if tail_length is not None:
        empty = (torch.arange(t, device=q.device) >= tail_length)[:, None]
        logits[:, most:].masked_fill_(empty, -torch.inf)
        tail_v = tail_v.masked_fill(empty, 0.0)  # which may hold anything
    weights = softmax_n(logits.transpose(1, 2), n).to(q.dtype)
    late = weights[..., most:] @ tail_v.reshape(b * h, t, tail_v.shape[3])
    heads = zip(late, weights, lengths, torch.split(flat_v, [*lengths]), strict=True)
    out = [torch.addmm(last, mine[:, :length], values) for last, mine, length, values in heads]
    return torch.stack(out).view(b, hq, 1, -1)
