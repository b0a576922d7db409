"""Ragged decoding: many chunks of every head's pairs in parallel, then a launch that joins them.

Flash decoding (Dao et al., 2023) over a flat body: a chunk's program reads its head's span in
``starts``, on the device, and returns at once if the head is shorter. All query heads of a KV head
share a program, so that every pair is read once. The tail's chunks follow the body's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from foveate.ops.kernels.launch import LOG2E, check, empty, power, rows, run, strided
from foveate.ops.kernels.tiles import of_head, product, tile
from foveate.ops.ragged_decode import FlatPairs

WAVES = 4  # programs per core, at least: heads have different lengths


def ragged_decode(
    q: Tensor,
    flat_k: Tensor,
    flat_v: Tensor,
    lengths: Sequence[int],
    tail_k: Tensor,
    tail_v: Tensor,
    scale: float,
    n: float = 0.0,
    starts: Tensor | None = None,
    longest: int | None = None,
    tail_length: Tensor | None = None,
) -> Tensor:
    """Attend to bodies and tails. Weights are cast to the values' dtype; sums are in float32."""
    optional = [x for x in (starts, tail_length) if x is not None]
    check("ragged_decode", q, flat_k, flat_v, tail_k, tail_v, others=optional)
    if starts is None:
        starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int64, device=q.device)
    flat = FlatPairs(flat_k, flat_v, starts, max(lengths) if longest is None else longest)
    tail = Tail(tail_k, tail_v, tail_length)
    chunk = chunk_size(len(flat_k), tail)
    parts = room(q, tail, -(-flat.longest // chunk) - (-tail.k.shape[2] // chunk))
    attend(parts, 0, q, flat, tail, scale, chunk)
    return joined(parts, q, n)


class Tail(NamedTuple):
    """Pairs appended later, the same number for every head, of which ``length`` count."""

    k: Float[Tensor, "b h t d"]
    v: Float[Tensor, "b h t e"]
    length: Int[Tensor, "1"] | None = None

    @property
    def rows(self) -> int:
        """Rows of a tile of pairs."""
        return rows(self.k if self.k.shape[3] >= self.v.shape[3] else self.v)


class Parts(NamedTuple):
    """Output, maximum and sum of each chunk for each query head, to base 2."""

    mixed: Float[Tensor, "q c e"]
    tops: Float[Tensor, "q c"]
    totals: Float[Tensor, "q c"]


def room(q: Float[Tensor, "b hq 1 d"], tail: Tail, chunks: int) -> Parts:
    """Allocate ``chunks`` chunks (or one, which stays empty)."""
    heads, chunks, e = q.shape[0] * q.shape[1], max(1, chunks), tail.v.shape[3]
    mixed = empty(heads, chunks, e, like=q, dtype=torch.float32)
    tops, totals = (empty(heads, chunks, like=q, dtype=torch.float32) for _ in range(2))
    return Parts(mixed, tops, totals)


def attend(
    parts: Parts,
    first: int,
    q: Float[Tensor, "b hq 1 d"],
    flat: FlatPairs,
    tail: Tail,
    scale: float,
    chunk: int,
) -> None:
    """Fill the parts from ``first`` on: bodies, then tails."""
    (b, hq, _, d), (h, t, e) = q.shape, tail.v.shape[1:]
    total = parts.tops.shape[1]
    run(
        _chunk_kernel,
        b * h * (total - first),
        q,
        strided(q.view(b, h, hq // h, d)),
        strided(flat.k),
        strided(flat.v),
        strided(tail.k),
        strided(tail.v),
        flat.starts,
        flat.starts if tail.length is None else tail.length,
        *parts,
        (h, hq // h, d, e),
        t,
        -(-flat.longest // chunk),
        first,
        total,
        chunk,
        scale * LOG2E,
        COUNTED=tail.length is not None,
        G=power(hq // h),
        D=power(d),
        E=power(e),
        N=tail.rows,
    )


def joined(parts: Parts, q: Float[Tensor, "b hq 1 d"], n: float) -> Float[Tensor, "b hq 1 e"]:
    """Join all parts to the output."""
    (b, hq), (chunks, e) = q.shape[:2], parts.mixed.shape[1:]
    out = empty(b, hq, 1, e, like=q)
    run(
        _join_kernel,
        b * hq,
        q,
        *parts,
        out,
        e,
        chunks,
        math.log2(n) if n else -math.inf,
        E=power(e),
        CHUNKS=power(chunks),
    )
    return out


def chunk_size(flat: int, tail: Tail) -> int:
    """Return the number of pairs per program, a power of two.

    ``flat`` is the number of pairs in bodies. A power of two limits the compiled variants of the
    join.
    """
    pairs = flat + tail.k.shape[:3].numel()
    return power(-(-pairs // (WAVES * _cores(tail.k.device))), tail.rows)


@cache
def _cores(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit
@no_type_check
def weighed(logits, top, total):
    """Return the weights of a tile's logits, the factor of earlier sums, and the new top and total.

    The online softmax: weights are relative to the highest logit so far, ``top``.
    """
    new = tl.maximum(top, tl.max(logits, 1))
    weights = tl.exp2(logits - new[:, None])
    shrunk = tl.exp2(top - new)
    return weights, shrunk[:, None], new, total * shrunk + tl.sum(weights, 1)


@triton.jit
@no_type_check
def store_part(mixed, tops, totals, line, g, e, top, total, out):
    """Write a chunk's part for all query heads of a KV head; an empty chunk has no output."""
    member, channel = tl.arange(0, out.shape[0]), tl.arange(0, out.shape[1])
    tl.store(tops + line, top, mask=member < g)
    tl.store(totals + line, total, mask=member < g)
    valid = (member < g)[:, None] & (channel < e)[None, :] & (total > 0)[:, None]
    tl.store(mixed + line[:, None] * e + channel[None, :], out, mask=valid)


@triton.jit
@no_type_check
def _attend(q, k, v, begin, end, d, e, scale, D, E, N: tl.constexpr):
    """Return maximum, sum and output of [G, D] queries over the pairs from begin to end."""
    column, channel = tl.arange(0, D), tl.arange(0, E)
    top = tl.full([q.shape[0]], -float("inf"), tl.float32)
    total = tl.zeros([q.shape[0]], tl.float32)
    mixed = tl.zeros([q.shape[0], E], tl.float32)
    for start in range(begin, end, N):
        pair = start + tl.arange(0, N)
        keys = tile(k, pair, column, end, d)
        logits = product(q, tl.trans(keys)) * scale
        logits = tl.where((pair < end)[None, :], logits, -float("inf"))
        weights, shrunk, top, total = weighed(logits, top, total)
        values = tile(v, pair, channel, end, e)
        mixed = mixed * shrunk + product(weights.to(values.dtype), values)
    return top, total, mixed


@triton.jit(do_not_specialize=["t", "early", "before", "total_chunks"])
@no_type_check
def _chunk_kernel(
    q,
    k,
    v,
    tail_k,
    tail_v,
    starts,
    tail_length,
    mixed,
    tops,
    totals,
    sizes,
    t,
    early,
    before,
    total_chunks,
    chunk,
    scale,
    COUNTED: tl.constexpr,
    G: tl.constexpr,
    D: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
):
    """Process a chunk of a KV head's body or tail, after ``before`` chunks of other kinds."""
    h, g, d, e = sizes
    chunks = total_chunks - before
    head = (tl.program_id(0) // chunks).to(tl.int64)  # KV heads, counted through all rows
    index = tl.program_id(0) % chunks
    b, kv_head = head // h, head % h
    group = tl.arange(0, G)
    queries = tile(of_head(q, b, kv_head), group, tl.arange(0, D), g, d)
    if index < early:
        start = tl.load(starts + head)
        length = tl.load(starts + head + 1) - start
        begin = tl.minimum(index * chunk, length).to(tl.int32)
        end = tl.minimum((index + 1) * chunk, length).to(tl.int32)
        keys = k[0] + start * k[1], k[1], k[2]
        values = v[0] + start * v[1], v[1], v[2]
        top, total, out = _attend(queries, keys, values, begin, end, d, e, scale, D, E, N)
    else:
        end = t
        if COUNTED:
            end = tl.load(tail_length).to(tl.int32)
        begin = tl.minimum((index - early) * chunk, end)
        end = tl.minimum((index - early + 1) * chunk, end)
        late_k, late_v = of_head(tail_k, b, kv_head), of_head(tail_v, b, kv_head)
        top, total, out = _attend(queries, late_k, late_v, begin, end, d, e, scale, D, E, N)
    line = (head * g + group) * total_chunks + before + index
    store_part(mixed, tops, totals, line, g, e, top, total, out)


@triton.jit(do_not_specialize=["chunks"])
@no_type_check
def _join_kernel(mixed, tops, totals, out, e, chunks, log_n, E: tl.constexpr, CHUNKS: tl.constexpr):
    """Join the chunks of one query head; log n is one more logit, with a value of zeros."""
    head = tl.program_id(0).to(tl.int64)
    chunk, channel = tl.arange(0, CHUNKS), tl.arange(0, E)
    top = tl.load(tops + head * chunks + chunk, mask=chunk < chunks, other=-float("inf"))
    total = tl.load(totals + head * chunks + chunk, mask=chunk < chunks, other=0.0)
    best = tl.maximum(tl.max(top, 0), log_n)
    best = tl.where(best == -float("inf"), 0.0, best)  # no pair at all
    total_of_all = tl.sum(total * tl.exp2(top - best), 0) + tl.exp2(log_n - best)
    sum_of_all = tl.zeros([E], tl.float32)
    for i in range(chunks):
        at = head * chunks + i
        level = tl.load(tops + at + tl.zeros([E], tl.int32))
        valid = (channel < e) & (level > -float("inf"))  # empty chunks wrote nothing
        part = tl.load(mixed + at * e + channel, mask=valid, other=0.0)
        sum_of_all += part * tl.exp2(level - best)
    result = sum_of_all / tl.where(total_of_all > 0, total_of_all, 1.0)
    tl.store(out + head * e + channel, result.to(out.dtype.element_ty), mask=channel < e)
