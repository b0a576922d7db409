"""One decoding step's attention over heads that hold different numbers of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foveate.ops.choice import Impl, operator
from foveate.ops.flash_decode import flash_decode
from foveate.ops.softmax_n import softmax_n


class FlatPairs(NamedTuple):
    """Pairs of all heads, head after head, row after row: where each head's start, and the last
    one's end, in ``starts`` (b * h + 1), and the most that a head has.
    """

    k: Float[Tensor, "f d"]
    v: Float[Tensor, "f e"]
    starts: Int[Tensor, "heads"]
    longest: int


@operator
def ragged_decode(
    q: Float[Tensor, "b hq 1 d"],
    flat_k: Float[Tensor, "f d"],
    flat_v: Float[Tensor, "f e"],
    lengths: Sequence[int],
    tail_k: Float[Tensor, "b h t d"],
    tail_v: Float[Tensor, "b h t e"],
    scale: float,
    n: float = 0.0,
    *,
    starts: Int[Tensor, "heads"] | None = None,
    longest: int | None = None,
    tail_length: Int[Tensor, "1"] | None = None,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq 1 e"]:
    """Attention of one query per row over its heads' bodies and tails; nothing is masked.

    Softmax in float32. A head without any pair gets zeros. The reference is a loop over the KV
    heads or, where it may be used, PyTorch's flash attention for CPUs.

    Args:
        q: one query per row and query head, ``hq = h * g``.
        flat_k: the bodies' keys, head after head, row after row.
        flat_v: their values.
        lengths: body length of each (row, KV head), in that order.
        tail_k: keys appended later, the same number for every head.
        tail_v: their values.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        starts: where each body starts, and where the last one ends, in 64 bits, on q's device. The
            kernel reads them instead of ``lengths``; None: they are made anew, at every call.
        longest: the largest of ``lengths``; None: it is looked for. Only the kernel needs it.
        tail_length: how many pairs of the tail count, on q's device; None: all.
        impl: as :func:`foveate.ops.choice.operator` says, which also lists the errors.

    With ``starts``, ``longest`` and ``tail_length`` given, the kernel's launches depend on the
    shapes alone and nothing waits for the device, as a CUDA graph requires.
    """
    if tail_length is None and _may_flash(q, flat_k, flat_v, tail_k, tail_v):
        return flash_decode(q, flat_k, flat_v, lengths, tail_k, tail_v, scale, n)
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
