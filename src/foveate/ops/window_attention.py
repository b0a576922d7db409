"""Attention of a prompt's last queries to every slot, with a softmax in float32.

The reference takes one head at a time: its product is faster than its part of a batched one, and
the next step reads the result from the core's cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from foveate.ops.choice import Impl, chosen, operator
from foveate.ops.numbers import numbers
from foveate.ops.softmax_n import softmax_n


@operator
def window_attention(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    scale: float,
    n: float = 0.0,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b h g w n"]:
    """Compute the attention probabilities of ``w`` queries over all slots, in float32.

    Args:
        q: queries, ``hq = h * g``; query head ``i`` reads KV head ``i // g``.
        k: keys.
        visible: True at those of the last ``s`` slots that a query attends to; it attends to all
            earlier ones. A query that sees no slot gets zeros.
        scale: of the logits.
        n: of softmax-n; 0 is the softmax.
        impl: see :func:`foveate.ops.choice.operator`, also for the errors.
    """
    (b, hq, w, _), (h, slots) = q.shape, k.shape[1:3]
    hidden = _hidden(visible, slots)
    paid = k.new_empty(b, h, hq // h, w, slots, dtype=torch.float32)
    for head, out in zip(_heads(q, k, hidden), paid.flatten(0, 1), strict=True):
        _write_weights(*head, scale, n, _output(out, hidden))
    return paid


def window_sums(
    q: Float[Tensor, "b hq w d"],
    k: Float[Tensor, "b h n d"],
    visible: Bool[Tensor, "b #h w s"],
    counts: Float[Tensor, "b c g w"],
    scale: float,
    n: float = 0.0,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b h c n"]:
    """Add up :func:`window_attention` over a KV head's queries, in float32.

    ``counts`` are the weights of each query in each of ``c`` sums; other arguments are the same.
    """
    if chosen(impl) == "triton":  # no kernel sums: multiply all weights
        paid = window_attention(q, k, visible, scale, n, impl=impl)
        return counts.flatten(2)[:, None] @ paid.flatten(2, 3)
    # all heads reuse the memory of one
    (b, c, g, w), (h, slots) = counts.shape, k.shape[1:3]
    hidden = _hidden(visible, slots)
    output = _output(k.new_empty(g, w, slots, dtype=torch.float32), hidden)
    sums = k.new_empty(b * h, c, slots, dtype=torch.float32)
    counted = [head_counts for head_counts in counts.flatten(2).unbind() for _ in range(h)]
    for head, head_counts, out in zip(_heads(q, k, hidden), counted, sums, strict=True):
        _write_weights(*head, scale, n, output)
        torch.mm(head_counts, output.rows, out=out)
    return sums.view(b, h, c, slots)


def from_first_hidden(visible: Bool[Tensor, "b #h w n"]) -> Bool[Tensor, "b #h w s"]:
    """Return the slots from the first that one of the queries does not attend to, as a copy."""
    # usually the window's own slots. torch vectorises the minimum of bytes, not of booleans
    seen_by_all = visible.flatten(0, 2).view(torch.uint8).amin(0)
    first = int(seen_by_all.cumprod(0).sum())
    return visible[..., first:].clone()


class _Output(NamedTuple):
    """Views of the memory for one KV head's weights.

    ``rows`` is a matrix; ``last`` are the slots that some query does not see.
    """

    rows: Float[Tensor, "m n"]
    weights: Float[Tensor, "g w n"]
    last: Float[Tensor, "g w s"]


def _output(paid: Float[Tensor, "g w n"], hidden: Bool[Tensor, "b h w s"]) -> _Output:
    slots = paid.shape[-1]
    return _Output(paid.view(-1, slots), paid, paid[..., slots - hidden.shape[-1] :])


def _hidden(visible: Bool[Tensor, "b #h w _"], slots: int) -> Bool[Tensor, "b #h w s"]:
    """Return a mask of hidden slots, from the first slot that is hidden from a query."""
    return ~(from_first_hidden(visible) if visible.shape[-1] == slots else visible)


def _heads(
    q: Float[Tensor, "b hq w d"], k: Float[Tensor, "b h n d"], hidden: Bool[Tensor, "b #h w s"]
) -> Iterator[tuple[Float[Tensor, "m d"], Float[Tensor, "d n"], Bool[Tensor, "w s"]]]:
    """Yield the queries, keys and hidden slots of every KV head."""
    b, h, _, d = k.shape
    queries = numbers(q).reshape(b, h, -1, d)
    of_heads = (queries, numbers(k).mT, hidden.expand(b, h, -1, -1))
    return zip(*map(_each_head, of_heads), strict=True)


def _each_head(t: Shaped[Tensor, "b h n d"]) -> list[Shaped[Tensor, "n d"]]:
    """Return views of all heads, row by row."""
    heads: list[Tensor] = []
    for row in t.unbind():
        heads += row.unbind()
    return heads


def _write_weights(
    queries: Float[Tensor, "m d"],
    keys: Float[Tensor, "d n"],
    hidden: Bool[Tensor, "w s"],
    scale: float,
    n: float,
    output: _Output,
) -> Float[Tensor, "g w n"]:
    """Write the weights of one KV head to its output."""
    rows, weights, last = output
    torch.addmm(rows, queries, keys, beta=0, alpha=scale, out=rows)
    last.masked_fill_(hidden, -torch.inf)
    if n:
        weights.copy_(softmax_n(weights, n))
    else:
        torch.softmax(weights, -1, out=weights)
    if last.shape != weights.shape:
        return weights  # every query sees the slots before the hidden ones
    return weights.masked_fill_(hidden.all(-1)[:, None], 0.0)
