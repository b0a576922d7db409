"""Row blocks: a block of queries holds its whole key row, so no T x T matrix is ever made.

A block has lanes, one to a thread, each a product of its own: two products side by side take half
of the time of one that all threads share. Its lanes are KV heads where these can be shared out
evenly, and otherwise parts of one head's queries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BYTES = 32 * 2**20
ROWS = 128  # of a lane's product, over the query heads of a KV head; or 64 queries, if that is more
LANES = 4  # at most: what a block sees past its own queries is thrown away


def room_for(q: Tensor, k: Tensor) -> Float[Tensor, "lanes rows w"]:
    """Where the weights of all blocks go, one after the other; two lanes at least.

    Memory that is new to the process costs more, page by page, than what is done with it.
    """
    (hq, m), (h, n) = q.shape[1:3], k.shape[1:3]
    g, lanes = hq // h, max(2, min(LANES, torch.get_num_threads()))
    fit = max(16, BYTES // (4 * lanes * g * max(n, 1)))
    rows = max(1, min(fit, max(64, ROWS // g), m))
    return q.new_empty(lanes, rows, g * n, dtype=torch.float32)


class HeadsOfRow(NamedTuple):
    """Heads of one row that are worked through together, without the row's padding."""

    row: int
    heads: slice
    start: int  # the first slot that is not padding
    first: int  # the first query that is not
    q: Float[Tensor, "c g m d"]


def parts(q: Tensor, k: Tensor, pads: list[int] | None, room: Tensor) -> Iterator[HeadsOfRow]:
    """As many KV heads at a time as there are lanes, if that comes out even, or one."""
    b, hq, m, d = q.shape
    h, n = k.shape[1], k.shape[2]
    grouped = q.reshape(b, h, hq // h, m, d)
    together = room.shape[0] if h % room.shape[0] == 0 else 1
    for row in range(b):
        start = pads[row] if pads else 0
        first = max(0, start - (n - m))  # query i stands at slot n - m + i
        for head in range(0, h, together):
            heads = slice(head, head + together)
            yield HeadsOfRow(row, heads, start, first, grouped[row, heads, :, first:])


class EqualBlocks(NamedTuple):
    """Blocks of a part's queries that follow each other and are equally large, times the scale."""

    part: HeadsOfRow
    first: int  # the first of these queries, counted in the part
    q: Float[Tensor, "blocks c lanes g rows d"]


def runs(part: HeadsOfRow, scale: float, room: Tensor) -> Iterator[EqualBlocks]:
    """As few blocks as their room allows, of the same size but for the last."""
    c, g, m, d = part.q.shape
    most = room.shape[0] // c  # lanes that each head has
    few = max(1, math.ceil(m / (most * room.shape[1])))
    full = max(1, most * math.ceil(m / (most * few)))
    # blocks of one size are one view; what is left over is a run of its own, maybe of one lane
    for first, end in ((0, m - m % full), (m - m % full, m)):
        if some := min(full, end - first):
            lanes = most if some % most == 0 else 1
            scaled = part.q[:, :, first:end].float().mul(scale)
            blocks = scaled.view(c, g, -1, lanes, some // lanes, d)
            yield EqualBlocks(part, first, blocks.permute(2, 0, 3, 1, 4, 5).contiguous())


class QueryBlock(NamedTuple):
    """Some queries of a part, in lanes, and their softmax, which the next block overwrites."""

    part: HeadsOfRow
    first: int  # the first of these queries, counted in the part
    q: Float[Tensor, "c lanes g rows d"]
    keys: Float[Tensor, "c end d"]
    weights: Float[Tensor, "c lanes g rows end"]


def blocks_of(
    run: EqualBlocks,
    keys: Float[Tensor, "c n d"],
    mask: Bool[Tensor, "#c m n"] | None,
    room: Float[Tensor, "lanes rows w"],
) -> Iterator[QueryBlock]:
    """One block after the other."""
    (c, lanes, g, rows, d), n = run.q.shape[1:], keys.shape[1]
    some, m = lanes * rows, run.part.q.shape[2]
    later = keys.new_full((some, some), -torch.inf, dtype=torch.float32).triu_(1)
    later = later.view(lanes, 1, rows, some)
    for first, q in zip(count(run.first, some), run.q, strict=False):
        # causal: no query of the block sees past the last one
        end = n if mask is not None else n - m + first + some
        weights = room.flatten()[: c * g * some * end].view(c, lanes, g, rows, end)
        columns = keys[:, None, :end].transpose(2, 3).expand(c, lanes, d, end)
        torch.bmm(lanes_of(q), columns.flatten(0, 1), out=lanes_of(weights))
        if mask is None:
            weights[..., end - some :] += later  # a fill takes 7 x that
            torch.softmax(weights, -1, out=weights)
        else:
            hidden = ~mask[:, first : first + some].reshape(-1, lanes, 1, rows, end)
            weights.masked_fill_(hidden, -torch.inf)
            torch.softmax(weights, -1, out=weights)
            weights.masked_fill_(hidden.all(-1, keepdim=True), 0.0)
        yield QueryBlock(run.part, first, q, keys[:, :end], weights)


def lanes_of(x: Float[Tensor, "c lanes g rows w"]) -> Float[Tensor, "c*lanes g*rows w"]:
    """What is multiplied side by side."""
    return x.flatten(0, 1).flatten(1, 2)
