"""Column sums of the causal softmax: how much attention each slot got from all queries.

The reference works in blocks of queries that hold their whole key rows, so that no T x T matrix is
ever made: each is added up, and multiplied with the values, while it is there. A block has lanes,
one to a thread, each a product of its own: two products side by side take half of the time of one
that all threads share. Its lanes are KV heads where these can be shared out evenly, and otherwise
parts of one head's queries.
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

BYTES = 32 * 2**20  # of all lanes' weights
ROWS = 128  # of a lane's product, over the query heads of a KV head; or 64 queries, if that is more
LANES = 4  # at most: what a block sees past its own queries is thrown away


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
    """Sum over queries of the softmax, per query head and slot, in float32.

    No m x n matrix is made: the kernel makes one pass for each query's log-sum-exp and one for the
    sums; the reference has, besides the result, the weights of as many queries of a few KV heads as
    fit in ``BYTES``, and those heads' queries and keys in float32.

    Args:
        q: the last ``m`` queries of a sequence of ``n``; ``hq = h * g``.
        k: keys of the whole sequence.
        scale: of the logits.
        mask: which slots each query attends to. None: causal, query i stands at slot n - m + i.
        pads: slots in front of each row that are padding: neither query nor key there counts.
        impl: as :func:`foveate.ops.choice.operator` says, which also lists the errors.
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
    """Causal attention, and its column sums from the same softmax, in float32.

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
    """Causal attention, and what its queries pay to every slot, added up over a KV head's queries
    as a softmax-n: the attention itself is the softmax. In float32.

    ``counts`` says how much each query counts in each of ``c`` sums; ``n`` is softmax-n's, 0 the
    softmax. All else is as in :func:`attention_with_sums`.
    """
    # softmax-n is a share of each query's softmax, so both come from one
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
    """Causal attention, and the most that any of a KV head's queries pays to every slot, from the
    same softmax, in float32. Arguments are those of :func:`column_sums`.
    """
    most = q.new_zeros(k.shape[:3], dtype=torch.float32)
    out = _attention(q, k, v, scale, pads, lambda block: _raise(most, block))
    return out, most


def attention_of_one(
    q: Float[Tensor, "b hq 1 d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    scale: float,
) -> tuple[Float[Tensor, "b hq 1 e"], Float[Tensor, "b hq n"]]:
    """Attention of one query over pairs that it all sees, and its weights, which are the column
    sums of one query; in float32, and in any order of the pairs. The query heads of a KV head are
    rows of one product.
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
    """Causal attention, whose blocks of weights are shown to ``add`` on the way."""
    b, hq, m, _ = q.shape
    h, e = k.shape[1], v.shape[3]
    # what comes after it wants it query by query
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
    """Every query counts once, in its own head's sums."""
    c, lanes, g, rows, end = block.weights.shape
    ones = block.weights.new_ones(1, 1, rows).expand(c * lanes * g, 1, rows)
    added = torch.bmm(ones, block.weights.view(c * lanes * g, rows, end))  # faster than a sum
    _of(sums, block)[...] += added.view(c, lanes, g, end).sum(1)


def _add_counted(
    sums: Float[Tensor, "b h c n"], block: QueryBlock, counts: Float[Tensor, "b c g m"], n: float
) -> None:
    """Every query counts as it is told, in each of its KV head's sums."""
    heads, lanes, g, rows, end = block.weights.shape
    first = block.part.first + block.first
    some = counts[block.part.row, :, :, first : first + lanes * rows]
    counted = some.view(-1, g, lanes, rows).permute(2, 0, 1, 3)  # lanes c g rows
    if n:
        counted = counted * share(_totals(block), n)[:, :, None]
    counted = counted.expand(heads, lanes, -1, g, rows).flatten(0, 1).flatten(2)
    added = torch.bmm(counted, lanes_of(block.weights))
    _of(sums, block)[...] += added.view(heads, lanes, -1, end).sum(1)


def _raise(most: Float[Tensor, "b h n"], block: QueryBlock) -> None:
    into = _of(most[:, :, None], block)[:, 0]
    torch.maximum(into, block.weights.amax((1, 2, 3)), out=into)


def _of(sums: Float[Tensor, "b h c n"], block: QueryBlock) -> Float[Tensor, "heads c end"]:
    """The sums that a block adds to."""
    row, heads, start = block.part[:3]
    return sums[row, heads, :, start : start + block.keys.shape[1]]


def _totals(block: QueryBlock) -> Float[Tensor, "heads lanes g rows"]:
    """The logsumexp of each row's logits: that of the query's own slot minus the logarithm of its
    weight; from all of the row's logits where that weight is too small to tell.
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
