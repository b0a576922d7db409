"""A loop over the KV heads of a flat body, joined with a dense tail in one softmax; or, where it
may be used, PyTorch's flash attention for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.ops.ragged_decode import flash
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
    """``starts`` and ``longest`` are not needed."""
    if tail_length is None and _may_flash(q, flat_k, flat_v, tail_k, tail_v):
        return flash.ragged_decode(q, flat_k, flat_v, lengths, tail_k, tail_v, scale, n)
    return by_products(q, flat_k, flat_v, lengths, tail_k, tail_v, scale, n, tail_length)


def by_products(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f e"],
    lengths: Sequence[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float,
    tail_length: Int[Tensor, "1"] | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """The products are in the inputs' dtype. Nothing is asked of the device, so that a step can be
    captured: what does not count of a tail is masked.
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
    of_tail = weights[..., most:] @ tail_v.reshape(b * h, t, tail_v.shape[3])
    heads = zip(of_tail, weights, lengths, torch.split(flat_v, [*lengths]), strict=True)
    out = [torch.addmm(last, mine[:, :length], values) for last, mine, length, values in heads]
    return torch.stack(out).view(b, hq, 1, -1)


def _may_flash(q: Tensor, *pairs: Tensor) -> bool:
    """Whether flash attention can do it: on a CPU, for keys and values of one width, where no
    gradients are recorded. It takes .7 to .9 of the loop's time with one thread, .7 to 1.0 with
    two (benchmarks/speed/ragged_step.py).
    """
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (q, *pairs))
    return q.device.type == "cpu" and q.shape[3] == pairs[1].shape[1] and not recorded
