"""Row blocks: a block of queries holds its whole key row, so no T x T matrix is ever made."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BLOCK = 256


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

    Extra memory is one block of logits, ``BLOCK * n`` floats, besides the result.
    """
    b, hq, m, _ = q.shape
    h, n = k.shape[1], k.shape[2]
    out = torch.zeros(b, hq, n, dtype=torch.float32, device=q.device)
    for row in range(b):
        start = pads[row] if pads else 0
        first = max(0, start - (n - m))  # queries before this one are padding
        for head in range(hq):
            keys = k[row, head * h // hq, start:].float().t()
            seen = None if mask is None else mask[row, head * h // hq if mask.shape[1] > 1 else 0]
            _add_head(out[row, head, start:], q[row, head, first:], keys, scale,
                      None if seen is None else seen[first:, start:])  # fmt: skip
    return out


def _add_head(
    out: Float[Tensor, "n"],
    q: Float[Tensor, "m d"],
    keys: Float[Tensor, "d n"],
    scale: float,
    mask: Bool[Tensor, "m n"] | None,
) -> None:
    """Adds one head's sums to ``out``."""
    m, n = q.shape[0], keys.shape[1]
    for a in range(0, m, BLOCK):
        e = min(a + BLOCK, m)
        end = n if mask is not None else n - m + e  # no query of the block sees past this slot
        logits = (q[a:e].float() @ keys[:, :end]).mul_(scale)
        if mask is not None:
            hidden = ~mask[a:e]
            logits.masked_fill_(hidden, -torch.inf)
            probabilities = logits.softmax(-1).masked_fill_(hidden.all(-1, keepdim=True), 0.0)
        else:
            square = torch.ones(e - a, e - a, dtype=torch.bool, device=q.device).triu_(1)
            logits[:, end - (e - a) :].masked_fill_(square, -torch.inf)
            probabilities = logits.softmax(-1)
        out[:end] += probabilities.sum(0)
