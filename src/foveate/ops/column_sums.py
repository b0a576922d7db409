"""Column sums of the causal softmax: attention that each slot gets from all queries.

The reference works in blocks of queries with complete key rows, so it never builds a T x T matrix:
a block's weights are added up, and multiplied with the values, before the next block overwrites
them. A block has lanes, one per thread, each a matrix product of its own: two parallel products
take half the time of one that all threads share. Lanes are KV heads if their number divides evenly,
otherwise parts of one head's queries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.ops.choice import Impl, operator
from foveate.ops.softmax_n import share

BYTES = 32 * 2**20  # for all lanes' weights
ROWS = 128  # of a lane's product: query heads times queries; at least 64 queries
LANES = 4  # at most: a larger block computes more logits that the causal mask hides


@operator
def column_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    scale: float,
    mask: Bool[Tensor, "b #h m n"] | None = None,
    pads: list[int] | None = None,
    *,
    impl: Impl | None = None,
) -> Float[Tensor, "b hq n"]:
    """Sum the softmax over queries, per query head and slot, in float32.

    No m x n matrix is built: the kernel makes one pass for each query's log-sum-exp and one for the
    sums. The reference's temporary memory is ``BYTES`` for the weights of some queries of a few KV
    heads, and those heads' queries and keys in float32.

    Args:
        q: the last ``m`` queries of a sequence of ``n``; ``hq = h * g``.
        k: keys of the complete sequence.
        scale: of the logits.
        mask: True at slots that each query attends to. None: causal, query i is at slot n - m + i.
        pads: number of padding slots in front of each row: their queries and keys do not count.
        impl: see :func:`foveate.ops.choice.operator`, also for the errors.
    """
    (b, hq), (h, n) = q.shape[:2], k.shape[1:3]
    sums = q.new_zeros(b, h, hq // h, n, dtype=torch.float32)
    room = room_for(q, k)
    for part in parts(q, k, pads, room):
        seen = None
        if mask is not None:
            heads = part.heads if mask.shape[1] > 1 else slice(None)
            seen = mask[part.row, heads, part.first :, part.start :]
        keys = k[part.row, part.heads, part.start :].float()
        for run in runs(part, scale, room):
            for block in blocks_of(run, keys, seen, room):
                _add(sums, block)
    return sums.view(b, hq, n)


@operator
def attention_with_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    pads: list[int] | None = None,
    *,
    impl: Impl | None = None,
) -> tuple[Float[Tensor, "b hq m e"], Float[Tensor, "b hq n"]]:
    """Compute causal attention, and its column sums from the same softmax, in float32.

    Arguments are those of :func:`column_sums`. The outputs of padding are zero.
    """
    (b, hq), (h, n) = q.shape[:2], k.shape[1:3]
    sums = q.new_zeros(b, h, hq // h, n, dtype=torch.float32)
    out = _attention(q, k, v, scale, pads, lambda block: _add(sums, block))
    return out, sums.view(b, hq, n)


@operator
def attention_with_counted_sums(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    counts: Float[Tensor, "b c g m"],
    scale: float,
    n: float = 0.0,
    pads: list[int] | None = None,
    *,
    impl: Impl | None = None,
) -> tuple[Float[Tensor, "b hq m e"], Float[Tensor, "b h c n"]]:
    """Compute causal attention, and weighted column sums of a softmax-n, in float32.

    The attention itself is the plain softmax. Each of the ``c`` sums is over all queries of a KV
    head, with the weights ``counts``. ``n`` is softmax-n's; 0 is the softmax. Other arguments are
    those of :func:`attention_with_sums`.
    """
    # softmax-n is each query's softmax times a factor, so one softmax is enough
    sums = q.new_zeros(*k.shape[:2], counts.shape[1], k.shape[2], dtype=torch.float32)
    out = _attention(q, k, v, scale, pads, lambda block: _add_counted(sums, block, counts, n))
    return out, sums


def attention_with_maxima(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    pads: list[int] | None = None,
) -> tuple[Float[Tensor, "b hq m e"], Float[Tensor, "b h n"]]:
    """Compute causal attention, and the largest weight of each slot, in float32.

    The maximum is over all queries of a KV head. Arguments are those of :func:`column_sums`.
    """
    maxima = q.new_zeros(k.shape[:3], dtype=torch.float32)
    out = _attention(q, k, v, scale, pads, lambda block: _update_maxima(maxima, block))
    return out, maxima


def attention_of_one(
    q: Float[Tensor, "b hq 1 d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
) -> tuple[Float[Tensor, "b hq 1 e"], Float[Tensor, "b hq n"]]:
    """Compute attention of one query to all pairs, and its weights, in float32.

    The weights are the column sums of one query. Pairs may be in any order.
    """
    b, hq, _, d = q.shape
    grouped = q.reshape(b, k.shape[1], -1, d).float() * scale
    weights = (grouped @ k.float().transpose(2, 3)).softmax(-1)
    out = weights @ v.float()
    return out.view(b, hq, 1, -1), weights.view(b, hq, -1)


def _attention(
    q: Float[Tensor, "b hq m d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
    pads: list[int] | None,
    add: Callable[[QueryBlock], None],
) -> Float[Tensor, "b hq m e"]:
    """Compute causal attention, and pass each block of weights to ``add``."""
    b, hq, m, _ = q.shape
    h, e = k.shape[1], v.shape[3]
    # the output projection reads it query by query
    out = q.new_empty(b, m, h, hq // h, e, dtype=torch.float32)
    room = room_for(q, k)
    for part in parts(q, k, pads, room):
        keys, values = (x[part.row, part.heads, part.start :].float() for x in (k, v))
        out[part.row, : part.first, part.heads] = 0.0
        into = out[part.row, part.first :, part.heads]
        for run in runs(part, scale, room):
            mixed = values.new_empty(*run.q.shape[:-1], e)
            for block, weighted in zip(blocks_of(run, keys, None, room), mixed, strict=True):
                add(block)
                c, lanes, _, _, end = block.weights.shape
                seen = values[:, None, :end].expand(c, lanes, end, e)
                torch.bmm(lanes_of(block.weights), seen.flatten(0, 1), out=lanes_of(weighted))
            blocks, c, lanes, g, rows = mixed.shape[:-1]
            read = into[run.first : run.first + blocks * lanes * rows]
            read.view(blocks, lanes, rows, c, g, e).copy_(mixed.permute(0, 2, 4, 1, 3, 5))
    return out.view(b, m, hq, e).transpose(1, 2)


def _add(sums: Float[Tensor, "b h g n"], block: QueryBlock) -> None:
    """Add every query's weights to the sums of its head."""
    c, lanes, g, rows, end = block.weights.shape
    unit_counts = block.weights.new_ones(1, 1, rows).expand(c * lanes * g, 1, rows)
    # faster than a sum
    added = torch.bmm(unit_counts, block.weights.view(c * lanes * g, rows, end))
    _sums_of_block(sums, block)[...] += added.view(c, lanes, g, end).sum(1)


def _add_counted(
    sums: Float[Tensor, "b h c n"], block: QueryBlock, counts: Float[Tensor, "b c g m"], n: float
) -> None:
    """Add every query's weights, times its counts, to the sums of its KV head."""
    heads, lanes, g, rows, end = block.weights.shape
    first = block.part.first + block.first
    own_counts = counts[block.part.row, :, :, first : first + lanes * rows]
    counted = own_counts.view(-1, g, lanes, rows).permute(2, 0, 1, 3)  # lanes c g rows
    if n:
        counted = counted * share(_totals(block), n)[:, :, None]
    counted = counted.expand(heads, lanes, -1, g, rows).flatten(0, 1).flatten(2)
    added = torch.bmm(counted, lanes_of(block.weights))
    _sums_of_block(sums, block)[...] += added.view(heads, lanes, -1, end).sum(1)


def _update_maxima(maxima: Float[Tensor, "b h n"], block: QueryBlock) -> None:
    own = _sums_of_block(maxima[:, :, None], block)[:, 0]
    torch.maximum(own, block.weights.amax((1, 2, 3)), out=own)


def _sums_of_block(
    sums: Float[Tensor, "b h c n"], block: QueryBlock
) -> Float[Tensor, "heads c end"]:
    """Return the sums that a block adds to."""
    row, heads, start = block.part[:3]
    return sums[row, heads, :, start : start + block.keys.shape[1]]


def _totals(block: QueryBlock) -> Float[Tensor, "heads lanes g rows"]:
    """Return the logsumexp of each row's logits.

    It is the logit of the query's own slot minus the logarithm of its weight. If that weight is too
    small, all of the row's logits are used.
    """
    heads, lanes, g, rows, end = block.weights.shape
    first = end - lanes * rows  # the slot of the block's first query
    slots = block.keys[:, first:].view(heads, lanes, 1, rows, -1)
    own = block.weights[..., first:].view(heads, lanes, g, rows, lanes, rows)
    own = own.diagonal(dim1=1, dim2=4).diagonal(dim1=2, dim2=3).transpose(1, 2)
    totals: Tensor = (block.q * slots).sum(-1) - own.log()
    small = own < torch.finfo(torch.float32).tiny * 2**24
    for head, lane, group, i in small.nonzero().tolist():
        seen = block.keys[head, : first + lane * rows + i + 1]
        totals[head, lane, group, i] = (seen @ block.q[head, lane, group, i]).logsumexp(0)
    return totals


def room_for(q: Tensor, k: Tensor) -> Float[Tensor, "lanes rows w"]:
    """Allocate memory for the weights of one block at a time; at least two lanes.

    All blocks reuse it, because page faults of new memory cost more than the computation.
    """
    (hq, m), (h, n) = q.shape[1:3], k.shape[1:3]
    g, lanes = hq // h, max(2, min(LANES, torch.get_num_threads()))
    fit = max(16, BYTES // (4 * lanes * g * max(n, 1)))
    rows = max(1, min(fit, max(64, ROWS // g), m))
    return q.new_empty(lanes, rows, g * n, dtype=torch.float32)


class HeadsOfRow(NamedTuple):
    """Heads of one row that are processed together, without the row's padding."""

    row: int
    heads: slice
    start: int  # the first slot that is not padding
    first: int  # the first query that is not
    q: Float[Tensor, "c g m d"]


def parts(q: Tensor, k: Tensor, pads: list[int] | None, room: Tensor) -> Iterator[HeadsOfRow]:
    """Yield as many KV heads at a time as there are lanes, if that divides evenly, or one."""
    b, hq, m, d = q.shape
    h, n = k.shape[1], k.shape[2]
    grouped = q.reshape(b, h, hq // h, m, d)
    together = room.shape[0] if h % room.shape[0] == 0 else 1
    for row in range(b):
        start = pads[row] if pads else 0
        first = max(0, start - (n - m))  # query i is at slot n - m + i
        for head in range(0, h, together):
            heads = slice(head, head + together)
            yield HeadsOfRow(row, heads, start, first, grouped[row, heads, :, first:])


class EqualBlocks(NamedTuple):
    """Consecutive blocks of a part's queries, equally large, with scaled queries."""

    part: HeadsOfRow
    first: int  # the first of these queries, counted in the part
    q: Float[Tensor, "blocks c lanes g rows d"]


def runs(part: HeadsOfRow, scale: float, room: Tensor) -> Iterator[EqualBlocks]:
    """Yield as few blocks as their room allows, all of one size except the last."""
    c, g, m, d = part.q.shape
    lanes_per_head = room.shape[0] // c  # lanes that each head has
    few = max(1, math.ceil(m / (lanes_per_head * room.shape[1])))
    full = max(1, lanes_per_head * math.ceil(m / (lanes_per_head * few)))
    # blocks of one size are one view; the remainder is a run of its own, maybe with one lane
    for first, end in ((0, m - m % full), (m - m % full, m)):
        if queries := min(full, end - first):
            lanes = lanes_per_head if queries % lanes_per_head == 0 else 1
            scaled = part.q[:, :, first:end].float().mul(scale)
            blocks = scaled.view(c, g, -1, lanes, queries // lanes, d)
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
    """Yield the blocks of a run, one after the other."""
    (c, lanes, g, rows, d), n = run.q.shape[1:], keys.shape[1]
    queries, m = lanes * rows, run.part.q.shape[2]
    later = keys.new_full((queries, queries), -torch.inf, dtype=torch.float32).triu_(1)
    later = later.view(lanes, 1, rows, queries)
    for first, q in zip(count(run.first, queries), run.q, strict=False):
        # causal: no query of the block sees past the last one
        end = n if mask is not None else n - m + first + queries
        weights = room.flatten()[: c * g * queries * end].view(c, lanes, g, rows, end)
        columns = keys[:, None, :end].transpose(2, 3).expand(c, lanes, d, end)
        torch.bmm(lanes_of(q), columns.flatten(0, 1), out=lanes_of(weights))
        if mask is None:
            weights[..., end - queries :] += later  # masked_fill_ takes 7 times as long
            torch.softmax(weights, -1, out=weights)
        else:
            hidden = ~mask[:, first : first + queries].reshape(-1, lanes, 1, rows, end)
            weights.masked_fill_(hidden, -torch.inf)
            torch.softmax(weights, -1, out=weights)
            weights.masked_fill_(hidden.all(-1, keepdim=True), 0.0)
        yield QueryBlock(run.part, first, q, keys[:, :end], weights)


def lanes_of(x: Float[Tensor, "c lanes g rows w"]) -> Float[Tensor, "c*lanes g*rows w"]:
    """Flatten to the batch of parallel matrix products."""
    return x.flatten(0, 1).flatten(1, 2)
