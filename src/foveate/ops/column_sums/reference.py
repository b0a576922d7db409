"""Row blocks: a block of queries holds its whole key row, so no T x T matrix is ever made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BYTES = 8 * 2**20
ROWS = 64  # queries to a block at most: what a block sees past its own queries is thrown away


def column_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    scale: float,
    mask: Bool[Tensor, "b #h m n"] | None = None,
    pads: list[int] | None = None,
) -> Float[Tensor, "b hq n"]:
    """Extra memory, besides the result: the weights of as many queries, of as many KV heads, as fit
    in ``BYTES`` (blocks that stay in the cache of a CPU), twice; and those heads' keys in float32.
    """
    (b, hq), (h, n) = q.shape[:2], k.shape[1:3]
    sums = torch.zeros(b, h, hq // h, n, dtype=torch.float32, device=q.device)
    for part in _parts(q, k, pads):
        seen = None
        if mask is not None:
            heads = part.heads if mask.shape[1] > 1 else slice(None)
            seen = mask[part.row, heads, part.first :, part.start :]
        keys = k[part.row, part.heads, part.start :].float()
        for block in _blocks(part.q, keys.transpose(1, 2), scale, seen, part.rows):
            _add(sums[part.row, part.heads, :, part.start :], block.weights)
    return sums.view(b, hq, n)


def attention_with_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    pads: list[int] | None = None,
) -> tuple[Float[Tensor, "b hq m e"], Float[Tensor, "b hq n"]]:
    """The same blocks, each multiplied with the values while it is there."""
    b, hq, m, _ = q.shape
    h, n, e = k.shape[1], k.shape[2], v.shape[3]
    sums = torch.zeros(b, h, hq // h, n, dtype=torch.float32, device=q.device)
    out = torch.zeros(b, h, hq // h, m, e, dtype=torch.float32, device=q.device)
    for part in _parts(q, k, pads):
        keys, values = (x[part.row, part.heads, part.start :].float() for x in (k, v))
        into = out[part.row, part.heads, :, part.first :]
        for a, weights in _blocks(part.q, keys.transpose(1, 2), scale, None, part.rows):
            _add(sums[part.row, part.heads, :, part.start :], weights)
            c, g, some, end = weights.shape
            mixed = torch.bmm(weights.view(c, g * some, end), values[:, :end])
            into[:, :, a : a + some] = mixed.view(c, g, some, e)
    return out.view(b, hq, m, e), sums.view(b, hq, n)


class _Part(NamedTuple):
    """Heads of one row that are worked through together, without the row's padding."""

    row: int
    heads: slice
    start: int  # the first slot that is not padding
    first: int  # the first query that is not
    q: Float[Tensor, "c g m d"]
    rows: int  # queries to a block


def _parts(q: Tensor, k: Tensor, pads: list[int] | None) -> Iterator[_Part]:
    b, hq, m, d = q.shape
    h, n = k.shape[1], k.shape[2]
    grouped = q.reshape(b, h, hq // h, m, d)
    rows = min(m, ROWS, max(16, BYTES // (4 * (hq // h) * n)))
    together = max(1, BYTES // (4 * (hq // h) * rows * n))
    for row in range(b):
        start = pads[row] if pads else 0
        first = max(0, start - (n - m))
        for head in range(0, h, together):
            heads = slice(head, head + together)
            yield _Part(row, heads, start, first, grouped[row, heads, :, first:], rows)


class _Block(NamedTuple):
    first: int
    weights: Float[Tensor, "c g rows end"]


def _blocks(
    q: Float[Tensor, "c g m d"],
    keys: Float[Tensor, "c d n"],
    scale: float,
    mask: Bool[Tensor, "#c m n"] | None,
    rows: int,
) -> Iterator[_Block]:
    """The softmax of one block of queries after the other; each overwrites the one before."""
    c, g, m, _ = q.shape
    n = keys.shape[2]
    room = torch.empty(2, c * g * min(rows, m) * n, dtype=torch.float32, device=q.device)
    for a in range(0, m, rows):
        some = min(rows, m - a)
        end = n if mask is not None else n - m + a + some  # no query of the block sees past it
        block = q[:, :, a : a + some].float().mul(scale).reshape(c, g * some, -1)
        logits, weights = (r[: c * g * some * end].view(c, g, some, end) for r in room)
        torch.bmm(block, keys[:, :, :end], out=logits.view(c, g * some, end))
        if mask is not None:
            hidden = ~mask[:, None, a : a + some]
            logits.masked_fill_(hidden, -torch.inf)
            torch.softmax(logits, -1, out=weights)
            weights.masked_fill_(hidden.all(-1, keepdim=True), 0.0)
        else:
            later = torch.ones(some, some, dtype=torch.bool, device=q.device).triu_(1)
            logits[..., end - some :].masked_fill_(later, -torch.inf)
            torch.softmax(logits, -1, out=weights)
        yield _Block(a, weights)


def _add(sums: Float[Tensor, "c g n"], weights: Float[Tensor, "c g rows end"]) -> None:
    c, g, some, end = weights.shape
    ones = weights.new_ones(1, 1, some).expand(c * g, 1, some)
    added = torch.bmm(ones, weights.view(c * g, some, end))  # faster than a sum
    sums[..., :end] += added.view(c, g, end)
