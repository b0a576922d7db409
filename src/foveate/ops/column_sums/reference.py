"""Row blocks: a block of queries holds its whole key row, so no T x T matrix is ever made."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BYTES = 2 * 2**20


def column_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    scale: float,
    mask: Bool[Tensor, "b #h m n"] | None = None,
    pads: list[int] | None = None,
) -> Float[Tensor, "b hq n"]:
    """Sum over queries of the softmax, per query head and slot, in float32.

    Args:
        q: the last ``m`` queries of a sequence of ``n``; ``hq = h * g``.
        k: keys of the whole sequence.
        scale: of the logits.
        mask: which slots each query attends to. None: causal, query i stands at slot n - m + i.
        pads: slots in front of each row that are padding: neither query nor key there counts.

    Extra memory, besides the result: the weights of as many queries, of as many KV heads, as fit in
    ``BYTES`` (a block that stays in the cache of a CPU), twice; and those heads' keys in float32.
    """
    b, hq, m, d = q.shape
    h, n = k.shape[1], k.shape[2]
    out = torch.zeros(b, h, hq // h, n, dtype=torch.float32, device=q.device)
    grouped = q.reshape(b, h, hq // h, m, d)
    rows = min(m, max(16, BYTES // (4 * (hq // h) * n)))
    heads = max(1, BYTES // (4 * (hq // h) * rows * n))
    for row in range(b):
        start = pads[row] if pads else 0
        first = max(0, start - (n - m))  # queries before this one are padding
        for head in range(0, h, heads):
            some = slice(head, head + heads)
            seen = None
            if mask is not None:
                seen = mask[row, some if mask.shape[1] > 1 else slice(None), first:, start:]
            _add(out[row, some, :, start:], grouped[row, some, :, first:],
                 k[row, some, start:].float().transpose(1, 2), scale, seen, rows)  # fmt: skip
    return out.view(b, hq, n)


def _add(
    out: Float[Tensor, "c g n"],
    q: Float[Tensor, "c g m d"],
    keys: Float[Tensor, "c d n"],
    scale: float,
    mask: Bool[Tensor, "#c m n"] | None,
    rows: int,
) -> None:
    """Adds the sums of some KV heads to ``out``, block of queries by block."""
    c, g, m, _ = q.shape
    n = keys.shape[2]
    for a in range(0, m, rows):
        e = min(a + rows, m)
        end = n if mask is not None else n - m + e  # no query of the block sees past this slot
        block = q[:, :, a:e].float().mul(scale).reshape(c, g * (e - a), -1)
        logits = torch.bmm(block, keys[:, :, :end]).view(c, g, e - a, end)
        if mask is not None:
            hidden = ~mask[:, None, a:e]
            logits.masked_fill_(hidden, -torch.inf)
            weights = logits.softmax(-1).masked_fill_(hidden.all(-1, keepdim=True), 0.0)
        else:
            later = torch.ones(e - a, e - a, dtype=torch.bool, device=q.device).triu_(1)
            logits[..., end - (e - a) :].masked_fill_(later, -torch.inf)
            weights = logits.softmax(-1)
        ones = weights.new_ones(c * g, 1, e - a)  # a product adds up faster than a sum does
        out[..., :end] += torch.bmm(ones, weights.view(c * g, e - a, end)).view(c, g, end)
