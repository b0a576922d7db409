"""Plain torch: softmax in float32, whatever the inputs' dtype.

One head at a time: its products take less time than its part of a batch, and what the next step
reads is still in the core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.heads import each_head
from foveate.ops.softmax_n import softmax_n
from foveate.ops.window_attention.hidden import from_first_hidden


def window_attention(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    scale: float,
    n: float,
) -> Float[Tensor, "b h g w n"]:
    """Each head's part is worked out in its place in the result."""
    (b, hq, w, _), (h, slots) = q.shape, k.shape[1:3]
    paid = k.new_empty(b, h, hq // h, w, slots, dtype=torch.float32)
    for head, out in zip(_heads(q, k, visible, scale), paid.flatten(0, 1), strict=True):
        _pay(*head, n, out)
    return paid


def window_sums(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    counts: Float[Tensor, "b w c"],
    scale: float,
    n: float,
) -> Float[Tensor, "b h g c n"]:
    """All heads are worked out in one and the same place."""
    (b, hq, w, _), (h, slots), c = q.shape, k.shape[1:3], counts.shape[2]
    g = hq // h
    paid = k.new_empty(g, w, slots, dtype=torch.float32)
    sums = k.new_empty(b * h, g, c, slots, dtype=torch.float32)
    counted = [of for row in counts.mT.unbind() for of in [row.expand(g, c, w)] * h]
    for head, of, out in zip(_heads(q, k, visible, scale), counted, sums, strict=True):
        torch.bmm(of, _pay(*head, n, paid), out=out)
    return sums.view(b, h, g, c, slots)


def _heads(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    scale: float,
) -> Iterator[tuple[Float[Tensor, "m d"], Float[Tensor, "n d"], Bool[Tensor, "w s"]]]:
    """Scaled queries of every KV head, its keys, and which of the last slots they do not see."""
    b, h, slots, d = k.shape
    if visible.shape[-1] == slots:
        visible = from_first_hidden(visible)
    queries = (q.detach().float() * scale).reshape(b, h, -1, d)
    hidden = (~visible).expand(b, h, -1, -1)
    return zip(*map(each_head, (queries, k.detach().float(), hidden)), strict=True)


def _pay(
    queries: Float[Tensor, "m d"],
    keys: Float[Tensor, "n d"],
    hidden: Bool[Tensor, "w s"],
    n: float,
    out: Float[Tensor, "g w n"],
) -> Float[Tensor, "g w n"]:
    """The weights of one KV head, in ``out``."""
    slots = len(keys)
    torch.mm(queries, keys.t(), out=out.view(-1, slots))
    before = slots - hidden.shape[1]
    out[..., before:].masked_fill_(hidden, -torch.inf)
    if n:
        out.copy_(softmax_n(out, n))
    else:
        torch.softmax(out, -1, out=out)
    # where some slots are before the hidden ones, every query sees something
    return out if before else out.masked_fill_(hidden.all(-1)[:, None], 0.0)
