"""Row blocks: a block of queries holds its whole key row, so no T x T matrix is ever made.

A block has lanes, one to a thread, each a product of its own: two products side by side take half
of the time of one that all threads share. Its lanes are KV heads where these can be shared out
evenly, and otherwise parts of one head's queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BYTES = 32 * 2**20
ROWS = 128  # of a lane's product, over the query heads of a KV head; or 64 queries, if that is more
LANES = 4  # at most: what a block sees past its own queries is thrown away


def column_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    scale: float,
    mask: Bool[Tensor, "b #h m n"] | None = None,
    pads: list[int] | None = None,
) -> Float[Tensor, "b hq n"]:
    """Extra memory, besides the result: the weights of as many queries of a few KV heads as fit in
    ``BYTES``, and those heads' keys in float32.
    """
    (b, hq), (h, n) = q.shape[:2], k.shape[1:3]
    sums = torch.zeros(b, h, hq // h, n, dtype=torch.float32, device=q.device)
    room = _room(q, k)
    for part in _parts(q, k, pads, room):
        seen = None
        if mask is not None:
            heads = part.heads if mask.shape[1] > 1 else slice(None)
            seen = mask[part.row, heads, part.first :, part.start :]
        keys = k[part.row, part.heads, part.start :].float()
        for block in _blocks(part.q, keys, scale, seen, room):
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
    room = _room(q, k)
    for part in _parts(q, k, pads, room):
        keys, values = (x[part.row, part.heads, part.start :].float() for x in (k, v))
        into = out[part.row, part.heads, :, part.first :]
        for a, weights in _blocks(part.q, keys, scale, None, room):
            _add(sums[part.row, part.heads, :, part.start :], weights)
            c, lanes, g, rows, end = weights.shape
            seen = values[:, :end].expand(c * lanes, end, e)
            mixed = torch.bmm(weights.view(c * lanes, g * rows, end), seen)
            mixed = mixed.view(c, lanes, g, rows, e).transpose(1, 2)
            into[:, :, a : a + lanes * rows] = mixed.flatten(2, 3)
    return out.view(b, hq, m, e), sums.view(b, hq, n)


def _room(q: Tensor, k: Tensor) -> Float[Tensor, "lanes rows w"]:
    """Where the weights of all blocks go, one after the other; two lanes at least.

    Memory that is new to the process costs more, page by page, than what is done with it.
    """
    (hq, m), (h, n) = q.shape[1:3], k.shape[1:3]
    g, lanes = hq // h, max(2, min(LANES, torch.get_num_threads()))
    fit = max(16, BYTES // (4 * lanes * g * max(n, 1)))
    rows = max(1, min(fit, max(64, ROWS // g), m))
    return q.new_empty(lanes, rows, g * n, dtype=torch.float32)


class _Part(NamedTuple):
    """Heads of one row that are worked through together, without the row's padding."""

    row: int
    heads: slice
    start: int  # the first slot that is not padding
    first: int  # the first query that is not
    q: Float[Tensor, "c g m d"]


def _parts(q: Tensor, k: Tensor, pads: list[int] | None, room: Tensor) -> Iterator[_Part]:
    b, hq, m, d = q.shape
    h, n = k.shape[1], k.shape[2]
    grouped = q.reshape(b, h, hq // h, m, d)
    together = room.shape[0] if h % room.shape[0] == 0 else 1
    for row in range(b):
        start = pads[row] if pads else 0
        first = max(0, start - (n - m))
        for head in range(0, h, together):
            heads = slice(head, head + together)
            yield _Part(row, heads, start, first, grouped[row, heads, :, first:])


class _Block(NamedTuple):
    first: int
    weights: Float[Tensor, "c lanes g rows end"]


def _blocks(
    q: Float[Tensor, "c g m d"],
    keys: Float[Tensor, "c n d"],
    scale: float,
    mask: Bool[Tensor, "#c m n"] | None,
    room: Float[Tensor, "lanes rows w"],
) -> Iterator[_Block]:
    """The softmax of one block of queries after the other; each overwrites the one before."""
    (c, g, m, d), n = q.shape, keys.shape[1]
    most = room.shape[0] // c  # lanes that each head has
    together = most * room.shape[1]
    for a in range(0, m, together):
        some = min(together, m - a)
        lanes = most if some % most == 0 else 1
        rows = some // lanes
        end = n if mask is not None else n - m + a + some  # no query of the block sees past it
        block = q[:, :, a : a + some].float().mul(scale).view(c, g, lanes, rows, d).transpose(1, 2)
        weights = room.flatten()[: c * g * some * end].view(c, lanes, g, rows, end)
        flat = weights.view(c * lanes, g * rows, end)
        columns = keys[:, :end].transpose(1, 2).expand(c * lanes, d, end)
        torch.bmm(block.reshape(c * lanes, g * rows, d), columns, out=flat)
        if mask is None:
            later = torch.ones(some, some, dtype=torch.bool, device=q.device).triu_(1)
            weights[..., end - some :].masked_fill_(later.view(lanes, 1, rows, some), -torch.inf)
            torch.softmax(flat, -1, out=flat)
        else:
            hidden = ~mask[:, a : a + some].reshape(-1, lanes, 1, rows, end)
            weights.masked_fill_(hidden, -torch.inf)
            torch.softmax(flat, -1, out=flat)
            weights.masked_fill_(hidden.all(-1, keepdim=True), 0.0)
        yield _Block(a, weights)


def _add(sums: Float[Tensor, "c g n"], weights: Float[Tensor, "c lanes g rows end"]) -> None:
    c, lanes, g, rows, end = weights.shape
    ones = weights.new_ones(1, 1, rows).expand(c * lanes * g, 1, rows)
    added = torch.bmm(ones, weights.view(c * lanes * g, rows, end))  # faster than a sum
    sums[..., :end] += added.view(c, lanes, g, end).sum(1)
