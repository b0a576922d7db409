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
    ``BYTES``, and those heads' queries and keys in float32.
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
        for run in _runs(part.q, scale, room):
            for weights in _weights(run, keys, seen, room):
                _add(sums[part.row, part.heads, :, part.start :], weights)
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
    out = sums.new_empty(b, m, h, hq // h, e)  # what comes after it wants it query by query
    room = _room(q, k)
    for part in _parts(q, k, pads, room):
        keys, values = (x[part.row, part.heads, part.start :].float() for x in (k, v))
        out[part.row, : part.first, part.heads] = 0.0
        into = out[part.row, part.first :, part.heads]
        for run in _runs(part.q, scale, room):
            mixed = values.new_empty(*run.q.shape[:-1], e)
            for block, weights in enumerate(_weights(run, keys, None, room)):
                _add(sums[part.row, part.heads, :, part.start :], weights)
                c, lanes, _, _, end = weights.shape
                seen = values[:, None, :end].expand(c, lanes, end, e)
                torch.bmm(_lanes(weights), seen.flatten(0, 1), out=_lanes(mixed[block]))
            blocks, c, lanes, g, rows = mixed.shape[:-1]
            read = into[run.first : run.first + blocks * lanes * rows]
            read.view(blocks, lanes, rows, c, g, e).copy_(mixed.permute(0, 2, 4, 1, 3, 5))
    return out.view(b, m, hq, e).transpose(1, 2), sums.view(b, hq, n)


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


class _Run(NamedTuple):
    """Blocks of queries that follow each other and are equally large, times the scale."""

    first: int
    left: int  # queries from the first one on
    q: Float[Tensor, "blocks c lanes g rows d"]


def _runs(q: Float[Tensor, "c g m d"], scale: float, room: Tensor) -> Iterator[_Run]:
    """The blocks that fill their room, and the one that is left."""
    c, g, m, d = q.shape
    most = room.shape[0] // c  # lanes that each head has
    full = most * room.shape[1]
    for first, end in ((0, m - m % full), (m - m % full, m)):
        if some := min(full, end - first):
            lanes = most if some % most == 0 else 1
            blocks = q[:, :, first:end].float().mul(scale).view(c, g, -1, lanes, some // lanes, d)
            yield _Run(first, m - first, blocks.permute(2, 0, 3, 1, 4, 5).contiguous())


def _weights(
    run: _Run,
    keys: Float[Tensor, "c n d"],
    mask: Bool[Tensor, "#c m n"] | None,
    room: Float[Tensor, "lanes rows w"],
) -> Iterator[Float[Tensor, "c lanes g rows end"]]:
    """The softmax of one block after the other; each overwrites the one before."""
    (c, lanes, g, rows, d), n = run.q.shape[1:], keys.shape[1]
    some = lanes * rows
    later = torch.full((some, some), -torch.inf, device=keys.device).triu_(1)
    later = later.view(lanes, 1, rows, some)
    for block, q in enumerate(run.q):
        # causal: no query of the block sees past the last one
        end = n if mask is not None else n - run.left + (block + 1) * some
        weights = room.flatten()[: c * g * some * end].view(c, lanes, g, rows, end)
        columns = keys[:, None, :end].transpose(2, 3).expand(c, lanes, d, end)
        torch.bmm(_lanes(q), columns.flatten(0, 1), out=_lanes(weights))
        if mask is None:
            weights[..., end - some :] += later  # a fill takes 7 x that
            torch.softmax(weights, -1, out=weights)
        else:
            first = run.first + block * some
            hidden = ~mask[:, first : first + some].reshape(-1, lanes, 1, rows, end)
            weights.masked_fill_(hidden, -torch.inf)
            torch.softmax(weights, -1, out=weights)
            weights.masked_fill_(hidden.all(-1, keepdim=True), 0.0)
        yield weights


def _lanes(x: Float[Tensor, "c lanes g rows w"]) -> Float[Tensor, "c*lanes g*rows w"]:
    """What is multiplied side by side."""
    return x.flatten(0, 1).flatten(1, 2)


def _add(sums: Float[Tensor, "c g n"], weights: Float[Tensor, "c lanes g rows end"]) -> None:
    c, lanes, g, rows, end = weights.shape
    ones = weights.new_ones(1, 1, rows).expand(c * lanes * g, 1, rows)
    added = torch.bmm(ones, weights.view(c * lanes * g, rows, end))  # faster than a sum
    sums[..., :end] += added.view(c, lanes, g, end).sum(1)
